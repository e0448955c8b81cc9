{{/*
What each component may do, and does: an unused right would be an open door. Certificates and leadership are needed
whatever the capabilities; a capability's rules exist only while it is enabled. Whatever has a name known beforehand
is granted by that name; `create` cannot be (RBAC knows no name then).
*/}}

{{/* What the eviction hold reads, in both components: the decision is made from these. */}}
{{- define "belay.rules.evictionHold.read" -}}
- apiGroups: [""]
  resources: [pods, nodes]
  verbs: [get, list, watch]
- apiGroups: [apps]
  resources: [deployments, replicasets]
  verbs: [get, list, watch]
- apiGroups: [belay.dev]
  resources: [handoverpolicies, evictionholds]
  verbs: [get, list, watch]
{{- end -}}

{{- define "belay.rules.cluster.webhook" -}}
# Readiness: the certificate must verify against the caBundle of the live configurations.
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingwebhookconfigurations, mutatingwebhookconfigurations]
  resourceNames: [{{ include "belay.fullname" . | quote }}]
  verbs: [get, list, watch]
{{- if .Values.evictionHold.enabled }}
{{ include "belay.rules.evictionHold.read" . }}
# The durable record of a hold, made by whichever replica was asked.
- apiGroups: [belay.dev]
  resources: [evictionholds]
  verbs: [create]
{{- end }}
{{- end -}}

{{- define "belay.rules.namespace.webhook" -}}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "belay.caSecretName" . }}]
  verbs: [get, list, watch]
{{- end -}}

{{- define "belay.rules.cluster.controller" -}}
# Keeps the caBundle of the configurations right.
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingwebhookconfigurations, mutatingwebhookconfigurations]
  resourceNames: [{{ include "belay.fullname" . | quote }}]
  verbs: [get, list, watch, patch]
{{- if .Values.evictionHold.enabled }}
{{ include "belay.rules.evictionHold.read" . }}
# The handover: one annotation of the pod template, and the record of it.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [patch]
- apiGroups: [belay.dev]
  resources: [evictionholds]
  verbs: [delete]
- apiGroups: [belay.dev]
  resources: [evictionholds/status, handoverpolicies/status]
  verbs: [patch]
# Events tell the owner of the workload, in the workload's namespace.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}
{{- end -}}

{{- define "belay.rules.namespace.controller" -}}
# Makes the CA and renews it.
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "belay.caSecretName" . }}]
  verbs: [get, list, watch, update]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "belay.leaseName" . }}]
  verbs: [get, update]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
{{- end -}}

{{/* Both roles of a component and their bindings. */}}
{{- define "belay.rbac" -}}
{{- $name := printf "%s-%s" (include "belay.fullname" .root) .component -}}
{{- $subject := include "belay.serviceAccountName" . -}}
{{- $labels := include "belay.labels" . -}}
{{- if .root.Values.rbac.create -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $name }}
  labels:
    {{- $labels | nindent 4 }}
rules:
  {{- include (printf "belay.rules.cluster.%s" .component) .root | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels:
    {{- $labels | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $subject }}
    namespace: {{ .root.Release.Namespace | quote }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace | quote }}
  labels:
    {{- $labels | nindent 4 }}
rules:
  {{- include (printf "belay.rules.namespace.%s" .component) .root | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace | quote }}
  labels:
    {{- $labels | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $subject }}
    namespace: {{ .root.Release.Namespace | quote }}
{{- end -}}
{{- end -}}
