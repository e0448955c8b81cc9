{{/*
The cleanup Jobs: pods outlive Belay, so what it wrote on them must be taken off while its program is still at hand. They
and all that they need are hooks, made before them and gone after them, since no other process should ever have their
rights.
*/}}

{{/*
Which Jobs there are, as a JSON list: when each runs, and its arguments besides `cleanup`. While busy hints are on, the
controller itself takes off what nothing governs any more, so an upgrade needs no Job. A rollback is one that Helm runs
other hooks for. The two of a release that can have
both have names of their own: to Argo CD and Kustomize two objects of one name are one.
*/}}
{{- define "belay.cleanup.jobs" -}}
{{- $jobs := list -}}
{{- $cost := .Values.deletionCost.enabled -}}
{{- if .Values.cleanup.enabled -}}
{{- if or .Values.busyHints.enabled $cost -}}
{{- $jobs = append $jobs (dict "component" "cleanup" "hook" "pre-delete" "args" (list "--stop-controller")) -}}
{{- end -}}
{{- if and .Values.cleanup.onUpgrade (not .Values.busyHints.enabled) -}}
{{- if $cost -}}
{{- $jobs = append $jobs (dict "component" "leftovers" "hook" "post-upgrade,post-rollback" "args" (list "--keep-deletion-costs")) -}}
{{- else -}}
{{- $jobs = append $jobs (dict "component" "cleanup" "hook" "post-upgrade,post-rollback" "args" list) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $jobs | toJson -}}
{{- end -}}

{{/* belay.cleanup.annotations (dict "job" . "weight" "0"); a failed Job stays, for its log, until the next try. */}}
{{- define "belay.cleanup.annotations" -}}
helm.sh/hook: {{ .job.hook }}
helm.sh/hook-weight: {{ .weight | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
