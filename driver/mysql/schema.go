package mysql

import (
	"slices"
	"strings"
)

// Schema returns the statements that create the tables of this package, which otherwise are created at
// their first use: those of session locks and row locks of a namespace (empty means
// [DefaultNamespace]), of its [KeyValues], and of the marks of prepared transactions. The namespace is
// trusted.
func Schema(namespace string) (statements []string) {
	if namespace == "" {
		namespace = DefaultNamespace
	}
	for _, text := range slices.Concat(sessionSchema, tableSchema) {
		statements = append(statements, strings.ReplaceAll(text, "{ns}", namespace))
	}
	return append(statements, NewKeyValues(nil, namespace+"_kv").sql(keyValuesSchema), marksSchema(DefaultMarks))
}
