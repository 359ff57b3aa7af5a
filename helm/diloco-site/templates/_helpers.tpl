{{- define "diloco-site.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "diloco-site.fullname" -}}
{{- $name := include "diloco-site.name" . -}}
{{- $full := .Values.fullnameOverride | default (ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name)) -}}
{{- $full | trunc 52 | trimSuffix "-" | trimSuffix "." -}}
{{- end -}}

{{- define "diloco-site.selectorLabels" -}}
app.kubernetes.io/name: {{ include "diloco-site.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "diloco-site.labels" -}}
{{ include "diloco-site.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | trunc 63 | quote }}
app.kubernetes.io/component: site
app.kubernetes.io/part-of: diloco
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- end -}}
