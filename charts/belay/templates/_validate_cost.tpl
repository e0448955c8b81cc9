{{/* What the schema cannot see of deletion costs: how long a duration is, and two values at once. */}}
{{- define "belay.validate.deletionCost" -}}
{{- $cost := .Values.deletionCost -}}
{{- $binding := .Values.admission.binding -}}
{{- range $key, $longest := dict "settlePeriod" "1h" "standDownPeriod" "24h" -}}
{{- $value := get $cost $key -}}
{{- $seconds := include "belay.seconds" $value | int -}}
{{- if or (lt $seconds 1) (gt $seconds (include "belay.seconds" $longest | int)) -}}
{{- fail (printf "deletionCost.%s is %s: it must be at least 1s and at most %s" $key $value $longest) -}}
{{- end -}}
{{- end -}}
{{- if ge (int $cost.writesPerSecond) (int .Values.writesPerSecond) -}}
{{- fail (printf "deletionCost.writesPerSecond (%v) is not below writesPerSecond (%v), which bounds all writes together, so nothing would be left for the drain that waits behind them: lower the first or raise the second" $cost.writesPerSecond .Values.writesPerSecond) -}}
{{- end -}}
{{- if and (eq $binding.failurePolicy "Fail") (lt (int .Values.webhook.replicas) 2) -}}
{{- fail "admission.binding.failurePolicy is Fail with one webhook replica: while it restarts, no pod outside the excluded namespaces can be scheduled. Set webhook.replicas to 2 or more, or failurePolicy to Ignore" -}}
{{- end -}}
{{- end -}}
