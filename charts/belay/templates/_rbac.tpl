{{/*
What each component may do. Base rules are needed by every installation; a capability's rules exist only while it is
enabled. Whatever has a name known beforehand is granted by that name; `create` cannot be (RBAC knows no name then).
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
# The first replica to start makes the CA.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
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
  verbs: [patch, update, delete]
- apiGroups: [belay.dev]
  resources: [evictionholds/status, handoverpolicies/status]
  verbs: [patch, update]
# A replacement that is stuck in Pending on a doomed node is made anew elsewhere.
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
# Events tell the owner of the workload, in the workload's namespace.
- apiGroups: ["", events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}
{{- end -}}

{{- define "belay.rules.namespace.controller" -}}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "belay.caSecretName" . }}]
  verbs: [get, list, watch, update, patch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "belay.leaseName" . }}]
  verbs: [get, update, patch, watch]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
# The owner of the CA Secret, which then goes when the release is uninstalled.
- apiGroups: [apps]
  resources: [deployments]
  resourceNames: [{{ include "belay.webhookName" . }}, {{ include "belay.controllerName" . }}]
  verbs: [get]
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
