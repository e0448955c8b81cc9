{{/*
The cleanup Job: pods outlive Belay, so what it wrote on them must be taken off while its program is still at hand. It and
all it needs are hooks, made before it and gone after it, since no other process should ever have its rights.
*/}}

{{/* When the Job runs: "pre-delete", "post-upgrade" or empty. Only where hints are written is there one to uninstall. */}}
{{- define "belay.cleanup.hook" -}}
{{- if .Values.cleanup.enabled -}}
{{- if .Values.busyHints.enabled -}}
pre-delete
{{- else if .Values.cleanup.onUpgrade -}}
post-upgrade
{{- end -}}
{{- end -}}
{{- end -}}

{{/* belay.cleanup.annotations (dict "root" $ "weight" "0"); a failed Job stays, for its log, until the next try. */}}
{{- define "belay.cleanup.annotations" -}}
helm.sh/hook: {{ include "belay.cleanup.hook" .root }}
helm.sh/hook-weight: {{ .weight | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
