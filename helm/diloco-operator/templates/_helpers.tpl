{{- define "diloco-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- /* A name a Service may have: releases may have dots in theirs, and begin with a digit. */ -}}
{{- define "diloco-operator.fullname" -}}
{{- $name := include "diloco-operator.name" . -}}
{{- $full := .Values.fullnameOverride | default (ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name)) -}}
{{- $full = $full | replace "." "-" -}}
{{- if regexMatch "^[0-9]" $full -}}
{{- $full = printf "r%s" $full -}}
{{- end -}}
{{- $full | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "diloco-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "diloco-operator.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "diloco-operator.labels" -}}
{{ include "diloco-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | trunc 63 | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: diloco
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- end -}}

{{- /* The chart's labels and somebody's own, which win: nothing is selected by those of these objects. Called with
(dict "own" LABELS "root" $). */ -}}
{{- define "diloco-operator.labelsWith" -}}
{{- merge (deepCopy .own) (include "diloco-operator.labels" .root | fromYaml) | toYaml -}}
{{- end -}}

{{- /* Of the pod of `helm test`: not those of the operator's pods, or Services would lead to it. */ -}}
{{- define "diloco-operator.testLabels" -}}
app.kubernetes.io/name: {{ printf "%s-test" (include "diloco-operator.name" . | trunc 58) | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "diloco-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "diloco-operator.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: needed where serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* An image's full name; called with (dict "image" VALUES "value" "image" "root" $). */ -}}
{{- define "diloco-operator.image" -}}
{{- $repository := .image.repository -}}
{{- if not $repository -}}
{{- fail (printf "%s.repository: no image is published; build and push both with `make images images-push REGISTRY=registry.example.com/team`, then: --set image.repository=registry.example.com/team/diloco-operator --set trainerImage.repository=registry.example.com/team/diloco-trainer" .value) -}}
{{- end -}}
{{- if .image.digest -}}
{{ $repository }}@{{ .image.digest }}
{{- else -}}
{{ $repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- /* A word or number as it was given: numbers of a values file are floats, which print as 1e+06 from a million on. */ -}}
{{- define "diloco-operator.plain" -}}
{{- ternary . (toJson .) (kindIs "string" .) -}}
{{- end -}}

{{- /* Restricted, for the one container of a pod. */ -}}
{{- define "diloco-operator.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* What the operator may do in a namespace whose jobs it acts upon. */ -}}
{{- define "diloco-operator.jobRules" -}}
- apiGroups: [diloco.dev]
  resources: [dilocojobs]
  verbs: [get, list, watch, patch]
- apiGroups: [diloco.dev]
  resources: [dilocojobs/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  resources: [secrets, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, create, patch, delete]
# Data goes with its job, by the cluster's own hand.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, create, patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, create, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{- /* "true" where an object of the Prometheus operator shall be rendered, by monitoring.renderMode; called with
(dict "enabled" BOOLEAN "kind" "ServiceMonitor" "root" $). */ -}}
{{- define "diloco.monitoring.render" -}}
{{- if .enabled -}}
{{- $mode := .root.Values.monitoring.renderMode -}}
{{- $api := printf "monitoring.coreos.com/v1/%s" .kind -}}
{{- if or (eq $mode "alwaysRender") (.root.Capabilities.APIVersions.Has $api) -}}
true
{{- else if eq $mode "failIfMissing" -}}
{{- fail (printf "monitoring.renderMode is failIfMissing and this cluster has no %s: install the Prometheus operator's CustomResourceDefinitions first, or tell helm that they are there with --api-versions %s" $api $api) -}}
{{- end -}}
{{- end -}}
{{- end -}}
