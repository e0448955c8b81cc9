{{/*
Sections of the values that are not there at all, which is what an upgrade with `--reuse-values` makes of those that are new:
it takes the defaults from the chart before. Asked by whatever is rendered first, or Helm's words would be "nil pointer".
*/}}
{{- define "belay.validate.sections" -}}
{{- range $path := list
      "crds" "rbac" "image" "evictionHold" "evictionHold.doom" "evictionHold.scale"
      "evictionHold.defaultPolicy" "busyHints" "deletionCost" "probe" "cleanup" "admission"
      "admission.eviction" "admission.podCreation" "admission.binding" "admissionPolicy" "certs"
      "certs.certManager" "certs.existingSecret" "webhook" "webhook.podDisruptionBudget"
      "webhook.serviceAccount" "controller" "controller.leaderElection" "controller.podDisruptionBudget"
      "controller.serviceAccount" "podMonitor" "serviceMonitor" "prometheusRule" "dashboard" "networkPolicy" -}}
{{- $section := $.Values -}}
{{- range $key := splitList "." $path -}}
{{- $section = get ($section | default dict) $key -}}
{{- end -}}
{{- if not (kindIs "map" $section) -}}
{{- fail (printf "the values have no %s, which this chart has defaults for: helm upgrade --reuse-values keeps the defaults of the chart before. Use --reset-then-reuse-values, or --values with a file of all that you set" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Values that the schema accepts one by one but that contradict each other, or that would leave a cluster worse off than
without Belay. Each message names the value and the way out. Rendered by config.yaml, which every release has.
*/}}
{{- define "belay.validate" -}}
{{- $never := list .Release.Namespace "kube-system" -}}
{{- $hold := .Values.evictionHold -}}

{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "belay.fullname" .)) -}}
{{- fail (printf "%s cannot be the name of a Service (small letters, digits and dashes, a letter first): set fullnameOverride" (include "belay.fullname" .)) -}}
{{- end -}}

{{- if not .Values.image.repository -}}
{{- fail "image.repository is empty: name the image to run, e.g. belay-dev/belay" -}}
{{- end -}}

{{- range $component := list "webhook" "controller" -}}
{{- $values := index $.Values $component -}}
{{- if lt (int $values.replicas) 1 -}}
{{- fail (printf "%s.replicas is %v: at least one is needed. To switch a capability off set evictionHold.enabled=false, busyHints.enabled=false or deletionCost.enabled=false; to remove Belay uninstall the release" $component $values.replicas) -}}
{{- end -}}
{{- if and (not $values.serviceAccount.create) (not $values.serviceAccount.name) -}}
{{- fail (printf "%s.serviceAccount.create is false and %s.serviceAccount.name is empty: Belay's rights would go to the namespace's default ServiceAccount. Name an existing ServiceAccount" $component $component) -}}
{{- end -}}
{{- if and $values.podDisruptionBudget.enabled (has (toString $values.podDisruptionBudget.maxUnavailable) (list "0" "0%")) -}}
{{- fail (printf "%s.podDisruptionBudget.maxUnavailable is %v: every drain would wait for Belay's own pods for ever. Use at least 1" $component $values.podDisruptionBudget.maxUnavailable) -}}
{{- end -}}
{{- range $values.extraEnv -}}
{{- if has .name (list "BELAY_CONFIG" "BELAY_CERTS" "BELAY_LISTEN" "BELAY_ADMIN_LISTEN" "BELAY_LOG" "BELAY_LOG_FORMAT" "BELAY_CONTROLLER" "BELAY_MUTATING_CONFIGURATION" "BELAY_VALIDATING_CONFIGURATION" "POD_NAME" "POD_UID" "POD_NAMESPACE") -}}
{{- fail (printf "%s.extraEnv sets %s, which the chart sets itself: use bindAddress, webhook.port, adminPort, logLevel or logFormat" $component .name) -}}
{{- end -}}
{{- end -}}
{{- if and (ne $values.podAntiAffinity "None") $values.affinity.podAntiAffinity -}}
{{- fail (printf "%s.podAntiAffinity is %s and %s.affinity.podAntiAffinity is set too: use one of them" $component $values.podAntiAffinity $component) -}}
{{- end -}}
{{- end -}}

{{- if eq (include "belay.serviceAccountName" (dict "root" . "component" "webhook")) (include "belay.serviceAccountName" (dict "root" . "component" "controller")) -}}
{{- fail "webhook.serviceAccount.name and controller.serviceAccount.name are the same: each component has its own rights. Name two ServiceAccounts" -}}
{{- end -}}

{{- $labels := dict
      "commonLabels" .Values.commonLabels
      "webhook.podLabels" .Values.webhook.podLabels
      "controller.podLabels" .Values.controller.podLabels
      "podMonitor.labels" .Values.podMonitor.labels
      "serviceMonitor.labels" .Values.serviceMonitor.labels
      "prometheusRule.labels" .Values.prometheusRule.labels
      "dashboard.labels" .Values.dashboard.labels -}}
{{- range $path, $map := $labels -}}
{{- range $key, $_ := $map -}}
{{- if hasKey (include "belay.ownLabels" (dict "root" $ "component" "any") | fromYaml) $key -}}
{{- fail (printf "%s sets %s, which the chart sets itself: remove it" $path $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- $interval := include "belay.seconds" .Values.probe.interval | int -}}
{{- if or (lt $interval 5) (gt $interval 600) -}}
{{- fail (printf "probe.interval is %s: it must be at least 5s and at most 10m" .Values.probe.interval) -}}
{{- end -}}

{{- if eq (int .Values.webhook.port) (int .Values.adminPort) -}}
{{- fail (printf "webhook.port and adminPort are both %v: choose two ports" .Values.adminPort) -}}
{{- end -}}

{{- if and (include "belay.holds" .) (eq .Values.admission.eviction.failurePolicy "Fail") (lt (int .Values.webhook.replicas) 2) -}}
{{- fail "admission.eviction.failurePolicy is Fail with one webhook replica: while it restarts, every eviction in the cluster fails and drains end with an error. Set webhook.replicas to 2 or more, or failurePolicy to Ignore" -}}
{{- end -}}
{{- if and (include "belay.holds" .) (eq .Values.admission.podCreation.failurePolicy "Fail") (lt (int .Values.webhook.replicas) 2) -}}
{{- fail "admission.podCreation.failurePolicy is Fail with one webhook replica: while it restarts, no pod of a Deployment or of a busy rule can be created. Set webhook.replicas to 2 or more, or failurePolicy to Ignore" -}}
{{- end -}}

{{- $selector := .Values.admission.namespaceSelector -}}
{{- range $key, $value := $selector.matchLabels -}}
{{- if and (eq $key "kubernetes.io/metadata.name") (has $value $never) -}}
{{- fail (printf "admission.namespaceSelector.matchLabels selects namespace %s, which Belay must never hold: it would wait for itself. Remove the label, or select other namespaces" $value) -}}
{{- end -}}
{{- end -}}
{{- range $selector.matchExpressions -}}
{{- if and (eq .key "kubernetes.io/metadata.name") (eq .operator "In") -}}
{{- range .values -}}
{{- if has . $never -}}
{{- fail (printf "admission.namespaceSelector.matchExpressions selects namespace %s, which Belay must never hold: it would wait for itself. Remove it from the values of the expression" .) -}}
{{- end -}}
{{- if has . $hold.excludedNamespaces -}}
{{- fail (printf "admission.namespaceSelector.matchExpressions selects namespace %s, which evictionHold.excludedNamespaces excludes: remove it from one of them" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- $stability := include "belay.seconds" $hold.doom.signalStability | int -}}
{{- if or (lt $stability 1) (gt $stability 600) -}}
{{- fail (printf "evictionHold.doom.signalStability is %s: use 1s to 10m. A signal that is gone within a second is none, and a drain does not wait longer than that" $hold.doom.signalStability) -}}
{{- end -}}
{{- $keys := list -}}
{{- range $hold.doom.taints -}}
{{- if has .key $keys -}}
{{- fail (printf "evictionHold.doom.taints names %s twice: remove one of them" .key) -}}
{{- end -}}
{{- $keys = append $keys .key -}}
{{- if .notice -}}
{{- $notice := include "belay.seconds" .notice | int -}}
{{- if or (lt $notice 1) (gt $notice 86400) -}}
{{- fail (printf "evictionHold.doom.taints gives %s a notice of %s: use 1s to 24h, or leave it out where the node waits for its pods" .key .notice) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if lt (include "belay.seconds" $hold.scale.abandonAfter | int) 270 -}}
{{- fail (printf "evictionHold.scale.abandonAfter (%s) must be at least 4m30s: Cluster Autoscaler asks again after a pause of 3m, which may be noted a minute late, and a shorter time would end surges that it comes back to" $hold.scale.abandonAfter) -}}
{{- end -}}

{{- if $hold.defaultPolicy.enabled -}}
{{- if not $hold.defaultPolicy.namespaces -}}
{{- fail "evictionHold.defaultPolicy.enabled is true but evictionHold.defaultPolicy.namespaces is empty, so it covers nothing: list namespaces, or \"*\" for all that are not excluded" -}}
{{- end -}}
{{- range $hold.defaultPolicy.namespaces -}}
{{- if has . $never -}}
{{- fail (printf "evictionHold.defaultPolicy.namespaces contains %s, which Belay must never hold: remove it" .) -}}
{{- end -}}
{{- if has . $hold.excludedNamespaces -}}
{{- fail (printf "evictionHold.defaultPolicy.namespaces contains %s, which evictionHold.excludedNamespaces excludes: remove it from one of them" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- if .Values.busyHints.enabled -}}
{{- include "belay.validate.busyHints" . -}}
{{- end -}}
{{- if .Values.deletionCost.enabled -}}
{{- include "belay.validate.deletionCost" . -}}
{{- end -}}

{{- include "belay.validate.certs" . -}}

{{- $election := .Values.controller.leaderElection -}}
{{- if le (include "belay.seconds" $election.leaseDuration | int) (include "belay.seconds" $election.renewDeadline | int) -}}
{{- fail (printf "controller.leaderElection.leaseDuration (%s) must be longer than renewDeadline (%s): else two replicas could lead at once" $election.leaseDuration $election.renewDeadline) -}}
{{- end -}}
{{- if le (include "belay.seconds" $election.renewDeadline | int) (include "belay.seconds" $election.retryPeriod | int) -}}
{{- fail (printf "controller.leaderElection.renewDeadline (%s) must be longer than retryPeriod (%s): else the leader gives up before its second try" $election.renewDeadline $election.retryPeriod) -}}
{{- end -}}
{{- if lt (include "belay.seconds" $election.retryPeriod | int) 1 -}}
{{- fail (printf "controller.leaderElection.retryPeriod (%s) must be at least 1s: shorter would only load the API server" $election.retryPeriod) -}}
{{- end -}}

{{- include "belay.validate.monitoring" . -}}
{{- end -}}
