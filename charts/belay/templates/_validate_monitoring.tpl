{{/* What Prometheus would refuse, or take twice. */}}
{{- define "belay.validate.monitoring" -}}
{{- if and .Values.podMonitor.enabled .Values.serviceMonitor.enabled -}}
{{- fail "podMonitor.enabled and serviceMonitor.enabled are both true: Prometheus would scrape each pod twice and count everything twice. Switch one of them off" -}}
{{- end -}}
{{- range $name := list "podMonitor" "serviceMonitor" -}}
{{- $monitor := index $.Values $name -}}
{{- if and $monitor.enabled (gt (include "belay.seconds" $monitor.scrapeTimeout | int) (include "belay.seconds" $monitor.interval | int)) -}}
{{- fail (printf "%s.scrapeTimeout (%s) is longer than %s.interval (%s): Prometheus refuses that" $name $monitor.scrapeTimeout $name $monitor.interval) -}}
{{- end -}}
{{- end -}}
{{- $known := list -}}
{{- range include "belay.alerts" . | fromJsonArray -}}
{{- $known = append $known .alert -}}
{{- end -}}
{{- range $name := .Values.prometheusRule.disabled -}}
{{- if not (has $name $known) -}}
{{- fail (printf "prometheusRule.disabled names %s, which is no alert of this chart: use %s" $name (join ", " $known)) -}}
{{- end -}}
{{- end -}}
{{- range $name := keys .Values.prometheusRule.overrides | sortAlpha -}}
{{- if not (has $name $known) -}}
{{- fail (printf "prometheusRule.overrides names %s, which is no alert of this chart: use %s" $name (join ", " $known)) -}}
{{- end -}}
{{- if has $name $.Values.prometheusRule.disabled -}}
{{- fail (printf "prometheusRule.overrides changes %s, which prometheusRule.disabled leaves out: remove it from one of them" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
