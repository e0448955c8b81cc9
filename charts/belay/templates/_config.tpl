{{/* The configuration file, in a template of its own so that the pods can carry its checksum. */}}
{{- define "belay.config" -}}
{{- $hold := .Values.evictionHold -}}
{{- $election := .Values.controller.leaderElection -}}
evictionHold:
  enabled: {{ $hold.enabled }}
  historyTTL: {{ $hold.historyTTL }}
  excludedNamespaces: {{ toJson $hold.excludedNamespaces }}
  ignoreEvictors: {{ toJson $hold.ignoreEvictors }}
  ignoreRestarters: {{ $hold.ignoreRestarters }}
  doom:
    signalStability: {{ $hold.doom.signalStability }}
    softSignals: {{ $hold.doom.softSignals }}
    taints: {{ toJson $hold.doom.taints }}
    conditions: {{ toJson $hold.doom.conditions }}
  scale:
    abandonAfter: {{ $hold.scale.abandonAfter }}
  defaultPolicy:
    enabled: {{ $hold.defaultPolicy.enabled }}
    namespaces: {{ toJson $hold.defaultPolicy.namespaces }}
    handover: {{ $hold.defaultPolicy.handover }}
    trigger: {{ $hold.defaultPolicy.trigger }}
    surgeReplicas: {{ int $hold.defaultPolicy.surgeReplicas }}
    readinessDeadlineSeconds: {{ int $hold.defaultPolicy.readinessDeadlineSeconds }}
    onFailure: {{ $hold.defaultPolicy.onFailure }}
{{- if .Values.busyHints.enabled }}
busyHints:
  enabled: true
  rules:
    {{- include "belay.busyRules" . | fromJsonArray | toYaml | nindent 4 }}
{{- end }}
{{- with .Values.deletionCost }}
{{- if .enabled }}
deletionCost:
  enabled: true
  maxNodes: {{ int .maxNodes }}
  nodePools: {{ toJson .nodePools }}
  spreadZones: {{ .spreadZones }}
  settlePeriod: {{ .settlePeriod }}
  standDownPeriod: {{ .standDownPeriod }}
  writesPerSecond: {{ int .writesPerSecond }}
{{- end }}
{{- end }}
probe:
  enabled: {{ .Values.probe.enabled }}
  interval: {{ .Values.probe.interval }}
certs:
  mode: {{ .Values.certs.mode }}
  {{- if eq .Values.certs.mode "auto" }}
  secretName: {{ include "belay.caSecretName" . }}
  {{- end }}
  {{- if include "belay.certs.injected" . }}
  caInjector: true
  {{- end }}
  dnsNames:
    - {{ include "belay.webhookDnsName" . }}
webhookConfigurations:
  validating: {{ include "belay.fullname" . | quote }}
  mutating: {{ include "belay.fullname" . | quote }}
leaderElection:
  leaseName: {{ include "belay.leaseName" . }}
  leaseDuration: {{ $election.leaseDuration }}
  renewDeadline: {{ $election.renewDeadline }}
  retryPeriod: {{ $election.retryPeriod }}
writesPerSecond: {{ int .Values.writesPerSecond }}
{{- end -}}
