{{- define "pylogd.labels" -}}
app.kubernetes.io/name: pylogd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "pylogd.connect" -}}
{{- .Values.zookeeper.connect | default (printf "%s-zookeeper:2181/pylogd" .Release.Name) -}}
{{- end }}
