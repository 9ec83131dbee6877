package rehearsal

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Lines is what a snapshot shows, a string or what is then written as JSON, without the
// lines that are to be ignored; nil ignores none.
func Lines(shown any, ignore func(line string) bool) ([]string, error) {
	text, is := shown.(string)
	if !is {
		indented, err := json.MarshalIndent(shown, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("write the snapshot as JSON: %w", err)
		}
		text = string(indented)
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if ignore != nil {
		lines = slices.DeleteFunc(lines, ignore)
	}
	return lines, nil
}
