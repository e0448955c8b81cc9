{{/*
What the schema cannot see of the busy rules: the schema never reads a preset, nor two values at once. Each message
names the rule and the way out. The program checks more (it compiles the expressions), but only once it runs.
*/}}
{{- define "belay.validate.busyHints" -}}
{{- $busy := .Values.busyHints -}}
{{- $excluded := include "belay.excludedNamespaces" . | fromJsonArray -}}
{{- if and (not $busy.presets) (not $busy.rules) -}}
{{- fail (printf "busyHints.enabled is true but busyHints.presets and busyHints.rules are empty, so no pod has a rule: name a preset (this chart brings: %s) or write a rule" (include "belay.presets" . | fromJsonArray | join ", " | default "none")) -}}
{{- end -}}
{{- range $preset, $_ := $busy.presetOverrides -}}
{{- if not (has $preset $busy.presets) -}}
{{- fail (printf "busyHints.presetOverrides changes preset %s, which is not in busyHints.presets (%s), so it would change nothing: add it there, or remove the override" $preset (join ", " $busy.presets | default "empty")) -}}
{{- end -}}
{{- end -}}

{{- $names := list -}}
{{- range $rule := include "belay.busyRules" . | fromJsonArray -}}
{{- $where := printf "busyHints: rule %s" $rule.name -}}
{{- if has $rule.name $names -}}
{{- fail (printf "busyHints: two rules are named %s: each name is also that of a webhook entry. Rename yours (the presets' names are theirs)" $rule.name) -}}
{{- end -}}
{{- $names = append $names $rule.name -}}

{{- $selector := $rule.podSelector | default dict -}}
{{- if not (or $selector.matchLabels $selector.matchExpressions) -}}
{{- fail (printf "%s has an empty podSelector, which would select every pod of the cluster: give it matchLabels or matchExpressions" $where) -}}
{{- end -}}
{{- range $rule.namespaces -}}
{{- if has . $excluded -}}
{{- fail (printf "%s is for namespace %s, which is excluded (the release namespace, kube-system and evictionHold.excludedNamespaces are): remove it from one of them" $where .) -}}
{{- end -}}
{{- end -}}

{{- $owner := $rule.owner | default dict -}}
{{- if eq (dig "eviction" "idle" "Allow" $rule) "DeleteOwner" -}}
{{- if not $owner -}}
{{- fail (printf "%s has eviction.idle DeleteOwner but no owner to delete: name the owner, or use Allow" $where) -}}
{{- end -}}
{{- if $owner.through -}}
{{- fail (printf "%s has eviction.idle DeleteOwner and an owner that is reached through %s: such an owner has other pods too. Use Allow, or make %s the owner" $where $owner.through.kind $owner.through.kind) -}}
{{- end -}}
{{- end -}}
{{- range $index, $state := $rule.states -}}
{{/* Without what stands in quotes; a name after a dot is a field, one that a macro binds is the macro's own. */}}
{{- $code := regexReplaceAll `"(\\.|[^"\\])*"|'(\\.|[^'\\])*'` $state.when "''" -}}
{{- range $name, $key := dict "owner" "owner" "linked" "linkedPods" -}}
{{- $used := regexMatch (printf `(^|[^.\w])%s\b` $name) $code -}}
{{- $bound := regexMatch (printf `\(\s*%s\s*,` $name) $code -}}
{{- if and $used (not $bound) (not (get $rule $key)) -}}
{{- fail (printf "%s reads %s in states[%d].when, but has no %s: it would be unknown for ever. Say which with %s" $where $name $index $key $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- if or (gt (include "belay.seconds" ($rule.maxBusy | default "6h") | int) 432000) (lt (include "belay.seconds" ($rule.maxBusy | default "6h") | int) 1) -}}
{{- fail (printf "%s has maxBusy %s: it must be more than 0s and at most 120h (the five days that GitHub lets a self-hosted job take)" $where $rule.maxBusy) -}}
{{- end -}}
{{- end -}}
{{- end -}}
