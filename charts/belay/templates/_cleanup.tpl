{{/*
The cleanup Jobs: pods and Deployments outlive Belay, so what it wrote on them must be taken off while its program is still
at hand. They and all that they need are hooks, made before them and gone after them, since no other process should ever
have their rights.
*/}}

{{/*
Which Jobs there are, as a JSON list: when each runs, and its arguments besides `cleanup`. After an upgrade, and a rollback,
which is one that Helm runs other hooks for, what is on is left alone; while the eviction hold and busy hints are on, the
controller itself takes off what nothing governs any more, so no Job is needed. The two of a release that can have
both have names of their own: to Argo CD and Kustomize two objects of one name are one.
*/}}
{{- define "belay.cleanup.jobs" -}}
{{- $jobs := list -}}
{{- $hold := .Values.evictionHold.enabled -}}
{{- $busy := .Values.busyHints.enabled -}}
{{- $cost := .Values.deletionCost.enabled -}}
{{- if .Values.cleanup.enabled -}}
{{- if include "belay.enabled" . -}}
{{- $jobs = append $jobs (dict "component" "cleanup" "hook" "pre-delete" "args" (list "--stop-controller")) -}}
{{- end -}}
{{- if and .Values.cleanup.onUpgrade (not (and $hold $busy)) -}}
{{- $args := list -}}
{{- range $flag, $is := dict "--keep-busy-hints" $busy "--keep-deletion-costs" $cost "--keep-handovers" $hold -}}
{{- if $is -}}
{{- $args = append $args $flag -}}
{{- end -}}
{{- end -}}
{{- $name := ternary "leftovers" "cleanup" (eq (include "belay.enabled" .) "true") -}}
{{- $jobs = append $jobs (dict "component" $name "hook" "post-upgrade,post-rollback" "args" $args) -}}
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
