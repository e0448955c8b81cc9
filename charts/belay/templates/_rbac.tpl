{{/*
What each component may do, and does: an unused right would be an open door. Certificates and leadership are needed
whatever the capabilities; a capability's rules exist only while it is enabled. Whatever has a name known beforehand
is granted by that name; the `create` of an object cannot be (RBAC knows no name then).
*/}}

{{/* What the eviction hold reads, in both components: the decision is made from these, and from the pods. */}}
{{- define "belay.rules.evictionHold.read" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch]
- apiGroups: [apps]
  resources: [deployments, replicasets]
  verbs: [get, list, watch]
- apiGroups: [belay.dev]
  resources: [handoverpolicies, evictionholds]
  verbs: [get, list, watch]
# What says how many replicas a Deployment has. KEDA's kind is granted whether or not it is there: it may come later.
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [list, watch]
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [list, watch]
{{- end -}}

{{/* belay.rules.owners (dict "resources" (a map from API group to resources) "verbs" "get, list, watch") */}}
{{- define "belay.rules.owners" -}}
{{- $resources := .resources -}}
{{- range $group := keys $resources | sortAlpha }}
- apiGroups: [{{ $group | quote }}]
  resources: {{ get $resources $group | toJson }}
  verbs: [{{ $.verbs }}]
{{- end -}}
{{- end -}}

{{/* What the busy hints read, in both components: the rules' owners, whose state is the pod's. */}}
{{- define "belay.rules.busyHints.read" -}}
{{- if not .Values.evictionHold.enabled -}}
- apiGroups: [belay.dev]
  resources: [evictionholds]
  verbs: [list, watch]
{{- end -}}
{{- include "belay.rules.owners" (dict "resources" (include "belay.ownerResources" (dict "root" .) | fromJson) "verbs" "get, list, watch") -}}
{{- end -}}

{{/* What the ranking reads, in both components: the nodes, and what may keep them from being emptied. */}}
{{- define "belay.rules.deletionCost.read" -}}
{{- if not .Values.evictionHold.enabled -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list, watch]
{{ end -}}
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch]
# Granted whether or not the cluster has Karpenter, which may be installed later.
- apiGroups: [karpenter.sh]
  resources: [nodeclaims, nodepools]
  verbs: [list, watch]
{{- end -}}

{{/* What the enabled capabilities read: belay.rules.read (dict "root" $ "pods" "get, list, watch"). */}}
{{- define "belay.rules.read" -}}
{{- $values := .root.Values -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [{{ .pods }}]
{{- if $values.evictionHold.enabled }}
{{ include "belay.rules.evictionHold.read" .root }}
{{- end }}
{{- if $values.busyHints.enabled }}
{{- with include "belay.rules.busyHints.read" .root | trim }}
{{ . }}
{{- end }}
{{- end }}
{{- if $values.deletionCost.enabled }}
{{ include "belay.rules.deletionCost.read" .root }}
{{- end }}
{{- end -}}

{{- define "belay.rules.cluster.webhook" -}}
# Readiness: the certificate must verify against the caBundle of the live configurations.
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingwebhookconfigurations, mutatingwebhookconfigurations]
  resourceNames: [{{ include "belay.fullname" . | quote }}]
  verbs: [get, list, watch]
{{ include "belay.rules.read" (dict "root" . "pods" "get, list, watch") }}
{{- if include "belay.holds" . }}
# The durable record of a hold, made by whichever replica was asked.
- apiGroups: [belay.dev]
  resources: [evictionholds]
  verbs: [create]
{{- end }}
{{- if .Values.evictionHold.enabled }}
# Notes when the eviction was last asked for: a handover that nobody waits for ends.
- apiGroups: [belay.dev]
  resources: [evictionholds/status]
  verbs: [patch]
{{- end }}
{{- end -}}

{{- define "belay.rules.namespace.webhook" -}}
{{- if eq .Values.certs.mode "auto" -}}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "belay.caSecretName" . }}]
  verbs: [get, list, watch]
{{- end -}}
{{- end -}}

{{- define "belay.rules.cluster.controller" -}}
{{- if not (include "belay.certs.injected" .) -}}
# Keeps the caBundle of the configurations right.
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingwebhookconfigurations, mutatingwebhookconfigurations]
  resourceNames: [{{ include "belay.fullname" . | quote }}]
  verbs: [get, list, watch, patch]
{{ else if include "belay.probes" . -}}
{{ include "belay.rules.cluster.probe" . }}
{{ end -}}
{{ include "belay.rules.read" (dict "root" . "pods" (ternary "get, list, watch" "list, watch" (eq (include "belay.holds" .) "true"))) }}
{{- if include "belay.holds" . }}
# Deleted when their history's time is over; made for evictions that are not asked of the webhook.
- apiGroups: [belay.dev]
  resources: [evictionholds]
  verbs: [create, delete]
- apiGroups: [belay.dev]
  resources: [evictionholds/status]
  verbs: [patch]
# Granted whether or not the API server serves EvictionRequests, which an upgrade may switch on.
- apiGroups: [lifecycle.k8s.io]
  resources: [evictions]
  verbs: [list, watch]
- apiGroups: [lifecycle.k8s.io]
  resources: [evictions/status]
  verbs: [patch]
{{- end }}
# Events tell the owner of the workload, in the workload's namespace.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- if .Values.evictionHold.enabled }}
# The handover: one annotation of the pod template, or the number of replicas, or what governs that; and the record of it.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [patch]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [patch]
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [patch]
- apiGroups: [belay.dev]
  resources: [handoverpolicies/status]
  verbs: [patch]
{{- end }}
# The hints of the pods that a busy rule selects; deletion costs, of all pods or of those that are handed over.
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
{{- if .Values.busyHints.enabled }}
{{- with include "belay.rules.owners" (dict "resources" (include "belay.ownerResources" (dict "root" . "deleted" true) | fromJson) "verbs" "delete") | trim }}
# Retires an idle owner where its rule says DeleteOwner.
{{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "belay.rules.namespace.controller" -}}
{{- if eq .Values.certs.mode "auto" -}}
# Makes the CA and renews it.
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "belay.caSecretName" . }}]
  verbs: [get, list, watch, update]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
{{- if not .Values.evictionHold.enabled }}
# The CA's owner is the controller's own Deployment, found from its pod; for the eviction hold the cluster's are read anyway.
{{- if not (include "belay.holds" .) }}
- apiGroups: [""]
  resources: [pods]
  verbs: [get]
{{- end }}
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [get]
{{- end }}
{{ end -}}
{{ if include "belay.probes" . -}}
{{ include "belay.rules.namespace.probe" . }}
{{ end -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "belay.leaseName" . }}]
  verbs: [get, update]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
{{- end -}}

{{/* The probe, of `helm test` or the controller's own. */}}
{{- define "belay.rules.cluster.probe" -}}
# Compares where evictions are sent with where the probe is.
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingwebhookconfigurations]
  resourceNames: [{{ include "belay.fullname" . | quote }}]
  verbs: [get]
{{- end -}}

{{- define "belay.rules.namespace.probe" -}}
# Asks whether evictions come to the webhook: a dry run, and no pod has this name.
- apiGroups: [""]
  resources: [pods/eviction]
  resourceNames: [belay-canary]
  verbs: [create]
{{- end -}}

{{/*
The cleanup Jobs. After an upgrade one only waits for the controller's rollout; before an uninstallation it also takes
away what would write again.
*/}}
{{- define "belay.rules.cleanup.pods" -}}
# Takes off what belay.dev/managed records; pods of the release namespace tell when the last writer is gone.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, patch]
{{- end -}}

{{- define "belay.rules.cleanup.surges" -}}
# Puts replicas back that a handover added.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, patch]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, patch]
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [get, list, patch]
{{- end -}}

{{- define "belay.rules.cluster.post-upgrade,post-rollback" -}}
{{ include "belay.rules.cleanup.pods" . }}
{{- if not .Values.evictionHold.enabled }}
{{ include "belay.rules.cleanup.surges" . }}
{{- end }}
{{- end -}}

{{- define "belay.rules.cluster.pre-delete" -}}
{{ include "belay.rules.cleanup.pods" . }}
{{ include "belay.rules.cleanup.surges" . }}
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingwebhookconfigurations]
  resourceNames: [{{ include "belay.fullname" . | quote }}]
  verbs: [get, delete]
{{- end -}}

{{- define "belay.rules.namespace.post-upgrade,post-rollback" -}}
- apiGroups: [apps]
  resources: [deployments]
  resourceNames: [{{ include "belay.controllerName" . }}]
  verbs: [get]
{{- end -}}

{{- define "belay.rules.namespace.pre-delete" -}}
{{ include "belay.rules.namespace.post-upgrade,post-rollback" . }}
- apiGroups: [apps]
  resources: [deployments/scale]
  resourceNames: [{{ include "belay.controllerName" . }}]
  verbs: [patch]
{{- end -}}

{{/*
Both roles of a component and their bindings. `annotations` (YAML) are those of all four objects; `rules` says whose
rules they are, where they are not called like the component.
*/}}
{{- define "belay.rbac" -}}
{{- $annotations := .annotations -}}
{{- $rules := .rules | default .component -}}
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
  {{- with $annotations }}
  annotations:
    {{- . | nindent 4 }}
  {{- end }}
rules:
  {{- include (printf "belay.rules.cluster.%s" $rules) .root | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels:
    {{- $labels | nindent 4 }}
  {{- with $annotations }}
  annotations:
    {{- . | nindent 4 }}
  {{- end }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $subject }}
    namespace: {{ .root.Release.Namespace | quote }}
{{- with include (printf "belay.rules.namespace.%s" $rules) .root }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ $.root.Release.Namespace | quote }}
  labels:
    {{- $labels | nindent 4 }}
  {{- with $annotations }}
  annotations:
    {{- . | nindent 4 }}
  {{- end }}
rules:
  {{- . | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ $.root.Release.Namespace | quote }}
  labels:
    {{- $labels | nindent 4 }}
  {{- with $annotations }}
  annotations:
    {{- . | nindent 4 }}
  {{- end }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $subject }}
    namespace: {{ $.root.Release.Namespace | quote }}
{{- end -}}
{{- end -}}
{{- end -}}
