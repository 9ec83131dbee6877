package postgres

import "strings"

// Schema returns the statements that create the tables of this package, which
// otherwise are created by whatever needs them first: those of session locks and
// of row locks of a namespace (empty means [DefaultNamespace]), of values, of keys, and the
// marks of prepared transactions. The namespace is trusted.
func Schema(namespace string) (statements []string) {
	if namespace == "" {
		namespace = DefaultNamespace
	}
	for text := range strings.SplitSeq(schema+tableSchema, ";") {
		if text = strings.TrimSpace(text); text != "" {
			statements = append(statements, strings.ReplaceAll(text, "{ns}", namespace))
		}
	}
	statements = append(statements, keyValuesSchema(namespace+"_kv", namespace+"_kv_revision")...)
	return append(statements, valuesSchema(namespace+"_value"), marksSchema(DefaultMarks))
}
