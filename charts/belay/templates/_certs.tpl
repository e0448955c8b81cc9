{{/* Where the webhook's certificates come from, where Belay does not make them itself. */}}

{{/* Where a mounted Secret stands in the pods. */}}
{{- define "belay.certs.folder" -}}
/etc/belay-certs
{{- end -}}

{{/* The Secret that the serving certificate is mounted from; empty where each replica signs its own. */}}
{{- define "belay.certs.secretName" -}}
{{- if eq .Values.certs.mode "certManager" -}}
{{ include "belay.webhookName" . }}-tls
{{- else if eq .Values.certs.mode "existingSecret" -}}
{{ .Values.certs.existingSecret.name }}
{{- end -}}
{{- end -}}

{{/* "true" where cert-manager's cainjector writes the caBundle, so that the controller leaves it alone. */}}
{{- define "belay.certs.injected" -}}
{{- if and (eq .Values.certs.mode "certManager") .Values.certs.certManager.caInjector -}}true{{- end -}}
{{- end -}}

{{/*
The Secret's volume of a component; empty where it needs none. The controller reads just what is to be trusted, and only
where it is the one that writes that.
belay.certs.volume (dict "root" $ "component" "webhook")
*/}}
{{- define "belay.certs.volume" -}}
{{- $isWebhook := eq .component "webhook" -}}
{{- $needed := or $isWebhook (not (include "belay.certs.injected" .root)) -}}
{{- with include "belay.certs.secretName" .root -}}
{{- if $needed -}}
secret:
  secretName: {{ . | quote }}
  {{- if not $isWebhook }}
  # Handovers need no certificate: without this one the controller runs, and says what is missing.
  optional: true
  items:
    - key: ca.crt
      path: ca.crt
  {{- end }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Annotations of both webhook configurations. */}}
{{- define "belay.certs.annotations" -}}
{{- $annotations := deepCopy .Values.admission.annotations -}}
{{- if include "belay.certs.injected" . -}}
{{- $_ := set $annotations "cert-manager.io/inject-ca-from" (printf "%s/%s" .Release.Namespace (include "belay.webhookName" .)) -}}
{{- end -}}
{{- with $annotations }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* Values that contradict each other. */}}
{{- define "belay.validate.certs" -}}
{{- $certs := .Values.certs -}}
{{- $inject := "cert-manager.io/inject-ca-from" -}}
{{- if hasKey .Values.admission.annotations $inject -}}
{{- fail (printf "admission.annotations sets %s: set certs.mode to certManager, which sets it, or two would write the caBundle in turns" $inject) -}}
{{- end -}}
{{- if and (eq $certs.mode "existingSecret") (not $certs.existingSecret.name) -}}
{{- fail "certs.mode is existingSecret and certs.existingSecret.name is empty: name the Secret with tls.crt, tls.key and ca.crt" -}}
{{- end -}}
{{- if and (ne $certs.mode "existingSecret") $certs.existingSecret.name -}}
{{- fail (printf "certs.existingSecret.name is %s and certs.mode is %s, which does not read it: set certs.mode to existingSecret, or remove the name" $certs.existingSecret.name $certs.mode) -}}
{{- end -}}
{{- if eq $certs.existingSecret.name (include "belay.caSecretName" .) -}}
{{- fail (printf "certs.existingSecret.name is %s, the Secret of the authority that certs.mode auto makes: use another name" $certs.existingSecret.name) -}}
{{- end -}}
{{- if ne $certs.mode "certManager" -}}
{{- if $certs.certManager.issuerRef -}}
{{- fail (printf "certs.certManager.issuerRef is set and certs.mode is %s, which asks no issuer: set certs.mode to certManager, or remove it" $certs.mode) -}}
{{- end -}}
{{- else -}}
{{- if and $certs.certManager.issuerRef (not $certs.certManager.issuerRef.name) -}}
{{- fail "certs.certManager.issuerRef has no name: name the issuer, or leave issuerRef empty for an authority of the chart's own" -}}
{{- end -}}
{{- if lt (include "belay.seconds" $certs.certManager.duration | int) 3600 -}}
{{- fail (printf "certs.certManager.duration is %s: cert-manager issues certificates for 1h at least" $certs.certManager.duration) -}}
{{- end -}}
{{- end -}}
{{- end -}}
