{{/*
The busy rules: the user's own first, then those of the presets, with what the values override. One list, made here and
nowhere else, so that the configuration, the rights and the webhook entries always speak of the same rules.
*/}}

{{/* The presets that the chart brings, as a JSON list of names. */}}
{{- define "belay.presets" -}}
{{- $names := list -}}
{{- range $path, $_ := .Files.Glob "files/presets/*.yaml" -}}
{{- $names = append $names (base $path | trimSuffix ".yaml") -}}
{{- end -}}
{{- $names | sortAlpha | toJson -}}
{{- end -}}

{{/* The rules of one preset as a JSON list, or a refusal: belay.presetRules (dict "root" $ "preset" "arc"). */}}
{{- define "belay.presetRules" -}}
{{- $known := include "belay.presets" .root | fromJsonArray -}}
{{- if not (has .preset $known) -}}
{{- fail (printf "busyHints.presets names %s, which this chart does not bring. It brings: %s" .preset (join ", " $known | default "none")) -}}
{{- end -}}
{{- $rules := .root.Files.Get (printf "files/presets/%s.yaml" .preset) | fromYamlArray -}}
{{- range $rules -}}
{{- if not (kindIs "map" .) -}}
{{- fail (printf "files/presets/%s.yaml of the chart is not a list of busy rules: %v" $.preset .) -}}
{{- end -}}
{{- end -}}
{{- if not $rules -}}
{{- fail (printf "files/presets/%s.yaml of the chart has no busy rules" .preset) -}}
{{- end -}}
{{- $rules | toJson -}}
{{- end -}}

{{/* Every rule as a JSON list; empty while the capability is off. */}}
{{- define "belay.busyRules" -}}
{{- $busy := .Values.busyHints -}}
{{- $rules := list -}}
{{- if $busy.enabled -}}
{{- $rules = concat $rules $busy.rules -}}
{{- range $preset := $busy.presets -}}
{{- $overrides := get $busy.presetOverrides $preset | default dict -}}
{{- range $rule := include "belay.presetRules" (dict "root" $ "preset" $preset) | fromJsonArray -}}
{{/* Key by key, since sprig's mergeOverwrite takes false and an empty list for absent. */}}
{{- range $key, $value := $overrides -}}
{{- if kindIs "map" $value -}}
{{- $merged := get $rule $key | default dict -}}
{{- range $inner, $setting := $value -}}
{{- $_ := set $merged $inner $setting -}}
{{- end -}}
{{- $_ := set $rule $key $merged -}}
{{- else -}}
{{- $_ := set $rule $key $value -}}
{{- end -}}
{{- end -}}
{{- $rules = append $rules $rule -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $rules | toJson -}}
{{- end -}}

{{/* The resource of an owner or of what leads to it, as RBAC names it. */}}
{{- define "belay.ownerResource" -}}
{{- .resource | default (printf "%ss" (lower .kind)) -}}
{{- end -}}

{{/*
The resources of the owners that the rules name, as a JSON map from API group to a sorted list without doubles.
belay.ownerResources (dict "root" $ "deleted" true) gives only those that a rule may delete.
*/}}
{{- define "belay.ownerResources" -}}
{{- $deleted := .deleted -}}
{{- $groups := dict -}}
{{- range $rule := include "belay.busyRules" .root | fromJsonArray -}}
{{- with $rule.owner -}}
{{- $read := list . -}}
{{- with .through -}}
{{- $read = append $read . -}}
{{- end -}}
{{- if $deleted -}}
{{- $read = ternary (list .) list (eq (dig "eviction" "idle" "Allow" $rule) "DeleteOwner") -}}
{{- end -}}
{{- range $read -}}
{{- $resources := append (get $groups .group | default list) (include "belay.ownerResource" .) -}}
{{- $_ := set $groups .group ($resources | uniq | sortAlpha) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $groups | toJson -}}
{{- end -}}
