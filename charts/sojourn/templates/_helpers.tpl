{{/* Names are fixed: there is one Sojourn in a cluster, since its kinds and policies are the cluster's. */}}

{{- define "sojourn.labels" -}}
app.kubernetes.io/part-of: sojourn
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* What selectors match: never changes within a release. Argument: dict "root" $ "component" NAME */}}
{{- define "sojourn.selector" -}}
app.kubernetes.io/name: sojourn-{{ .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{/* Argument: dict "root" $ "image" VALUES */}}
{{- define "sojourn.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "sojourn.operatorUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:sojourn-operator
{{- end }}

{{- define "sojourn.gatewayUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:sojourn-gateway
{{- end }}

{{/* Passes the level `restricted`. */}}
{{- define "sojourn.restrictedPod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "sojourn.restrictedContainer" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "sojourn.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "sojourn.apiServerEgress" -}}
# The API server is no pod, so it cannot be selected: its ports are.
- ports:
    {{- range .Values.networkPolicies.apiServerPorts }}
    - protocol: TCP
      port: {{ . }}
    {{- end }}
{{- end }}

{{- define "sojourn.dnsEgress" -}}
- ports:
    - protocol: UDP
      port: 53
    - protocol: TCP
      port: 53
{{- end }}

{{- define "sojourn.sessionsEgress" -}}
# The sessions' pods, in any namespace.
- ports:
    - protocol: TCP
      port: 8000
  to:
    - namespaceSelector: {}
      podSelector:
        matchExpressions:
          - key: sojourn.dev/session
            operator: Exists
{{- end }}

{{- define "sojourn.noGpus" -}}
(!has(c.resources) || ((!has(c.resources.limits) || c.resources.limits.all(r,
!r.startsWith('sojourn.dev/gpu-') && !r.startsWith('sojourn.dev/mig-')))
&& (!has(c.resources.requests) || c.resources.requests.all(r,
!r.startsWith('sojourn.dev/gpu-') && !r.startsWith('sojourn.dev/mig-')))))
{{- end }}

{{- define "sojourn.crdsHook" -}}
helm.sh/hook: pre-upgrade
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
