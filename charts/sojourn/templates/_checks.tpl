{{/* What a schema cannot say of the values: each `fail` names the value, what it is and what it may be. */}}

{{/* Bytes of 1Gi, 256Mi, 64Ki or a number, which may have come as a float. */}}
{{- define "sojourn.bytes" -}}
{{- if kindIs "string" . -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- $unit := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "" 1 -}}
{{- mul $number (get $unit (regexFind "[KMG]i$" .)) -}}
{{- else -}}
{{- int64 . -}}
{{- end -}}
{{- end }}

{{- define "sojourn.checks" -}}
{{- include "sojourn.checkSlices" .Values.devicePlugin }}
{{- if and .Values.devicePlugin.processNames (not .Values.devicePlugin.hostProc) }}
{{- fail "devicePlugin.processNames: processes can be named only where the plugin sees them; set devicePlugin.hostProc=true too" }}
{{- end }}
{{- with .Values.sessions.priorityClass }}
{{- if and .create (not .name) }}
{{- fail "sessions.priorityClass.name: a class without a name cannot be created; name it, or set sessions.priorityClass.create=false for none" }}
{{- end }}
{{- end }}
{{- include "sojourn.checkMounts" (dict "where" "sessions" "values" .Values.sessions) }}
{{- include "sojourn.checkMounts" (dict "where" "devicePlugin" "values" .Values.devicePlugin) }}
{{- with .Values.gateway }}
{{- if gt (int64 .mostHeld) (int64 .mostOpen) }}
{{- fail (printf "gateway.mostHeld: %d requests cannot wait where gateway.mostOpen lets %d in; raise mostOpen or lower mostHeld" (int64 .mostHeld) (int64 .mostOpen)) }}
{{- end }}
{{- if gt (int64 .mostHeldPerSession) (int64 .mostHeld) }}
{{- fail (printf "gateway.mostHeldPerSession: %d requests of one session cannot wait where gateway.mostHeld lets %d of all wait; raise mostHeld or lower mostHeldPerSession" (int64 .mostHeldPerSession) (int64 .mostHeld)) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "sojourn.checkSlices" -}}
{{- $sizes := dict "sliceBytes" .sliceBytes }}
{{- range $model, $size := .sliceBytesByModel }}
{{- $_ := set $sizes (printf "sliceBytesByModel.%s" $model) $size }}
{{- end }}
{{- range $name, $size := $sizes }}
{{- if lt (include "sojourn.bytes" $size | int64) 268435456 }}
{{- fail (printf "devicePlugin.%s: %v is below 256Mi, the smallest slice; write 256Mi or more" $name $size) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Argument: dict "where" NAME "values" VALUES-WITH-EXTRA-VOLUMES */}}
{{- define "sojourn.checkMounts" -}}
{{- $where := .where }}
{{- $names := list }}
{{- range .values.extraVolumes }}
{{- $names = append $names .name }}
{{- end }}
{{- range .values.extraVolumeMounts }}
{{- if not (has .name $names) }}
{{- fail (printf "%s.extraVolumeMounts: %s is no volume of %s.extraVolumes; add it there" $where .name $where) }}
{{- end }}
{{- end }}
{{- end }}
