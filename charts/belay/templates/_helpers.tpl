{{/* Names and labels. Every name derives from belay.fullname, so that two objects never disagree about one. */}}

{{- define "belay.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* 52 = 63 characters of a label value less the longest suffix, "-controller". */}}
{{- define "belay.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "belay.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "belay.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "belay.webhookName" -}}
{{ include "belay.fullname" . }}-webhook
{{- end -}}

{{/* The name by which the API server calls. */}}
{{- define "belay.webhookDnsName" -}}
{{ include "belay.webhookName" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "belay.controllerName" -}}
{{ include "belay.fullname" . }}-controller
{{- end -}}

{{/* The Secret with the CA. The program creates it: a rendered one would be overwritten at every upgrade. */}}
{{- define "belay.caSecretName" -}}
{{ include "belay.fullname" . }}-ca
{{- end -}}

{{- define "belay.leaseName" -}}
{{ include "belay.fullname" . }}-controller
{{- end -}}

{{/* belay.serviceAccountName (dict "root" $ "component" "webhook") */}}
{{- define "belay.serviceAccountName" -}}
{{- $account := (index .root.Values .component).serviceAccount | default dict -}}
{{- $account.name | default (printf "%s-%s" (include "belay.fullname" .root) .component) -}}
{{- end -}}

{{/* "true" where a capability is enabled; without one nothing runs, and so nothing has any rights. */}}
{{- define "belay.enabled" -}}
{{- include "belay.validate.sections" . -}}
{{- if or .Values.evictionHold.enabled .Values.busyHints.enabled .Values.deletionCost.enabled -}}true{{- end -}}
{{- end -}}

{{/* "true" where a capability that holds evictions is enabled: else nobody is asked about them, and nothing records one. */}}
{{- define "belay.holds" -}}
{{- if or .Values.evictionHold.enabled .Values.busyHints.enabled -}}true{{- end -}}
{{- end -}}

{{/* "true" where the leading controller asks whether evictions come to the webhook. */}}
{{- define "belay.probes" -}}
{{- if and .Values.probe.enabled (include "belay.holds" .) -}}true{{- end -}}
{{- end -}}

{{/* "true" where `helm test` has something to run. */}}
{{- define "belay.helmTest" -}}
{{- if and .Values.probe.helmTest (include "belay.holds" .) -}}true{{- end -}}
{{- end -}}

{{/* What all pods of the release have in common. */}}
{{- define "belay.releaseLabels" -}}
app.kubernetes.io/name: {{ include "belay.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "belay.selectorLabels" -}}
{{ include "belay.releaseLabels" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* The labels that the chart sets by itself, and that nobody can change. */}}
{{- define "belay.ownLabels" -}}
{{ include "belay.releaseLabels" .root }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
app.kubernetes.io/part-of: belay
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* belay.labels (dict "root" $ "component" "webhook"); the component may be left out. */}}
{{- define "belay.labels" -}}
{{ include "belay.ownLabels" . }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "belay.image" -}}
{{- $image := .Values.image -}}
{{- with $image.registry }}{{ . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end -}}
{{- end -}}

{{/*
The namespaces that are never Belay's business, as a JSON list: its own, because it must never hold itself;
kube-system, because the cluster hangs on it; and the user's. The program excludes the first two by itself as well.
*/}}
{{- define "belay.excludedNamespaces" -}}
{{- concat (list .Release.Namespace "kube-system") .Values.evictionHold.excludedNamespaces | uniq | toJson -}}
{{- end -}}

{{/*
The namespaceSelector of every webhook: what is excluded from one capability is excluded from all.
belay.namespaceSelector (dict "root" $ "only" list); an empty `only` stands for every namespace.
*/}}
{{- define "belay.namespaceSelector" -}}
{{- $selector := .root.Values.admission.namespaceSelector -}}
{{- with $selector.matchLabels }}
matchLabels:
  {{- toYaml . | nindent 2 }}
{{- end }}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values:
      {{- include "belay.excludedNamespaces" .root | fromJsonArray | toYaml | nindent 6 }}
  {{- with .only }}
  - key: kubernetes.io/metadata.name
    operator: In
    values:
      {{- toYaml . | nindent 6 }}
  {{- end }}
  {{- with $selector.matchExpressions }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* What every entry that is asked about new pods has in common: belay.podCreation (dict "root" $ "path" "/mutate/pods"). */}}
{{- define "belay.podCreation" -}}
{{- $call := .root.Values.admission.podCreation -}}
admissionReviewVersions: [v1]
clientConfig:
  service:
    name: {{ include "belay.webhookName" .root }}
    namespace: {{ .root.Release.Namespace | quote }}
    path: {{ .path }}
    port: 443
rules:
  - apiGroups: [""]
    apiVersions: [v1]
    resources: [pods]
    operations: [CREATE]
    scope: Namespaced
matchPolicy: Equivalent
sideEffects: None
reinvocationPolicy: {{ $call.reinvocationPolicy }}
failurePolicy: {{ $call.failurePolicy }}
timeoutSeconds: {{ int $call.timeoutSeconds }}
{{- end -}}

{{/* Seconds of a duration such as 1h30m (the schema has checked its form). */}}
{{- define "belay.seconds" -}}
{{- $unit := dict "h" 3600 "m" 60 "s" 1 -}}
{{- $total := 0 -}}
{{- range regexFindAll "[0-9]+[hms]" . -1 -}}
{{- $total = add $total (mul (trimSuffix (regexFind "[hms]" .) . | atoi) (get $unit (regexFind "[hms]" .))) -}}
{{- end -}}
{{- $total -}}
{{- end -}}

{{/* The alerts, as a JSON list; the prose of the file is Prometheus' templates, not Helm's. */}}
{{- define "belay.alerts" -}}
{{- .Files.Get "files/alerts.yaml" | fromYamlArray | toJson -}}
{{- end -}}

{{/*
The users that write on pods and workloads, as a JSON list: the controller, and the Jobs, by whichever name they have at an
upgrade.
*/}}
{{- define "belay.writers" -}}
{{- $users := list -}}
{{- range $component := list "controller" "cleanup" "leftovers" -}}
{{- $account := include "belay.serviceAccountName" (dict "root" $ "component" $component) -}}
{{- $users = append $users (printf "system:serviceaccount:%s:%s" $.Release.Namespace $account) -}}
{{- end -}}
{{- $users | toJson -}}
{{- end -}}
