{{/*
What both components have in common. Arguments everywhere: (dict "root" $ "component" "webhook"); the component's name
is the subcommand, the suffix of every name and the key of its values.
*/}}

{{- define "belay.serviceAccount" -}}
{{- $account := (index .root.Values .component).serviceAccount -}}
{{- if $account.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "belay.serviceAccountName" . }}
  namespace: {{ .root.Release.Namespace | quote }}
  labels:
    {{- include "belay.labels" . | nindent 4 }}
  {{- with $account.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
# Pods that need a token ask for it themselves; no other one of this account gets any.
automountServiceAccountToken: false
{{- end -}}
{{- end -}}

{{- define "belay.podDisruptionBudget" -}}
{{- $budget := (index .root.Values .component).podDisruptionBudget -}}
{{- if $budget.enabled -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "belay.fullname" .root }}-{{ .component }}
  namespace: {{ .root.Release.Namespace | quote }}
  labels:
    {{- include "belay.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ $budget.maxUnavailable }}
  # A replica that is not Ready protects nothing, so it must not hold up a drain either.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "belay.selectorLabels" . | nindent 6 }}
{{- end -}}
{{- end -}}

{{/* The user's affinity and what podAntiAffinity adds. Per revision, so that the surge pod of a rollout finds a node. */}}
{{- define "belay.affinity" -}}
{{- $values := index .root.Values .component -}}
{{- $affinity := deepCopy $values.affinity -}}
{{- if ne $values.podAntiAffinity "None" -}}
{{- $term := dict
      "topologyKey" "kubernetes.io/hostname"
      "labelSelector" (dict "matchLabels" (include "belay.selectorLabels" . | fromYaml))
      "matchLabelKeys" (list "pod-template-hash") -}}
{{- if eq $values.podAntiAffinity "Required" -}}
{{- $_ := set $affinity "podAntiAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term)) -}}
{{- else -}}
{{- $_ := set $affinity "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $term))) -}}
{{- end -}}
{{- end -}}
{{- with $affinity }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* What every pod of the chart is given, whoever makes it: (dict "root" $ "component" "webhook" "values" .Values.webhook). */}}
{{- define "belay.podSpec" -}}
serviceAccountName: {{ include "belay.serviceAccountName" . }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "belay.containerImage" -}}
image: {{ include "belay.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end -}}

{{- define "belay.logEnv" -}}
- name: BELAY_LOG
  value: {{ .Values.logLevel | quote }}
- name: BELAY_LOG_FORMAT
  value: {{ .Values.logFormat | quote }}
{{- end -}}

{{- define "belay.containerLimits" -}}
{{- with .values.resources -}}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "belay.deployment" -}}
{{- $root := .root -}}
{{- $values := index $root.Values .component -}}
{{- $isWebhook := eq .component "webhook" -}}
{{- $labels := merge (include "belay.labels" . | fromYaml) $values.podLabels -}}
{{- $constraints := list -}}
{{- range $values.topologySpreadConstraints -}}
{{- $constraints = append $constraints (merge (dict) . (dict "labelSelector" (dict "matchLabels" (include "belay.selectorLabels" $ | fromYaml)))) -}}
{{- end -}}
{{/* A changed configuration rolls the pods: the checksum is part of their template. */}}
{{- $annotations := merge (dict
      "checksum/config" (include "belay.config" $root | sha256sum)
      "kubectl.kubernetes.io/default-container" .component) $values.podAnnotations -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "belay.fullname" $root }}-{{ .component }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "belay.labels" . | nindent 4 }}
spec:
  replicas: {{ int $values.replicas }}
  revisionHistoryLimit: 3
  selector:
    matchLabels:
      {{- include "belay.selectorLabels" . | nindent 6 }}
  strategy:
    type: RollingUpdate
    # A replica goes only after its successor is Ready: fewer would be calls that the API server cannot make.
    rollingUpdate:
      maxSurge: 1
      maxUnavailable: 0
  template:
    metadata:
      annotations:
        {{- toYaml $annotations | nindent 8 }}
      labels:
        {{- toYaml $labels | nindent 8 }}
    spec:
      {{- include "belay.podSpec" (dict "root" $root "component" .component "values" $values) | nindent 6 }}
      # The program goes on serving for 10 s after SIGTERM, until every API server has seen that it left, then drains.
      terminationGracePeriodSeconds: 30
      {{- if and $isWebhook $values.hostNetwork }}
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      {{- end }}
      {{- with include "belay.affinity" . }}
      affinity:
        {{- . | nindent 8 }}
      {{- end }}
      {{- with $constraints }}
      topologySpreadConstraints:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .component }}
          {{- include "belay.containerImage" $root | nindent 10 }}
          args:
            - {{ .component }}
            - --config
            - /etc/belay/config.yaml
          env:
            - name: POD_NAME
              valueFrom:
                fieldRef:
                  fieldPath: metadata.name
            - name: POD_UID
              valueFrom:
                fieldRef:
                  fieldPath: metadata.uid
            - name: POD_NAMESPACE
              valueFrom:
                fieldRef:
                  fieldPath: metadata.namespace
            {{- if $isWebhook }}
            - name: BELAY_LISTEN
              value: {{ printf "%s:%d" $root.Values.bindAddress (int $values.port) | quote }}
            {{- else }}
            # For `belay probe` in this pod, whose rights it has.
            - name: BELAY_VALIDATING_CONFIGURATION
              value: {{ include "belay.fullname" $root | quote }}
            {{- end }}
            {{- if include "belay.certs.volume" . }}
            - name: BELAY_CERTS
              value: {{ include "belay.certs.folder" $root }}
            {{- end }}
            - name: BELAY_ADMIN_LISTEN
              value: {{ printf "%s:%d" $root.Values.bindAddress (int $root.Values.adminPort) | quote }}
            {{- include "belay.logEnv" $root | nindent 12 }}
            {{- with $values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            {{- if $isWebhook }}
            - name: https
              containerPort: {{ int $values.port }}
              protocol: TCP
            {{- end }}
            - name: admin
              containerPort: {{ int $root.Values.adminPort }}
              protocol: TCP
          # A minute to start: a large cluster's first lists may take a while; nothing waits for it under `Ignore`.
          startupProbe:
            httpGet:
              path: /livez
              port: admin
            periodSeconds: 1
            failureThreshold: 60
          # Ready as soon as it can answer from its caches, and out of the Service within seconds when it cannot.
          readinessProbe:
            httpGet:
              path: /readyz
              port: admin
            periodSeconds: 2
            failureThreshold: 2
          livenessProbe:
            httpGet:
              path: /livez
              port: admin
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 3
          {{- include "belay.containerLimits" (dict "root" $root "values" $values) | trim | nindent 10 }}
          volumeMounts:
            - name: config
              mountPath: /etc/belay
              readOnly: true
            {{- if include "belay.certs.volume" . }}
            - name: certs
              mountPath: {{ include "belay.certs.folder" $root }}
              readOnly: true
            {{- end }}
      volumes:
        - name: config
          configMap:
            name: {{ include "belay.fullname" $root }}-config
        {{- with include "belay.certs.volume" . }}
        - name: certs
          {{- . | nindent 10 }}
        {{- end }}
{{- end -}}
