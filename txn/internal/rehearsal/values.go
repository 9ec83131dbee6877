package rehearsal

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Values are the values of fakes, by key; a missing value is empty.
type Values map[string]string

// Add adds to the number of a key, from 0, and returns the sum. It panics if the value is not a number.
func (v Values) Add(key string, n int) int {
	sum := n
	if text := v[key]; text != "" {
		old, err := strconv.Atoi(text)
		if err != nil {
			panic(fmt.Sprintf("the value of %q is %q, and not a number", key, text))
		}
		sum += old
	}
	v[key] = strconv.Itoa(sum)
	return sum
}

// Draft returns a copy that can be changed; also of nil.
func (v Values) Draft() Values {
	draft := Values{}
	maps.Copy(draft, v)
	return draft
}

// Text returns the values, one a line, in the order of their keys. It omits those that are empty or 0,
// which Add does not distinguish from missing ones.
func (v Values) Text() string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(v)) {
		if value := v[key]; value != "" && value != "0" {
			fmt.Fprintf(&b, "%s: %s\n", key, value)
		}
	}
	return b.String()
}

// Lines returns the lines of a snapshot, a string or a value written as JSON, without ignored lines; a
// nil ignore keeps all.
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

// mostLines bounds the lines of a difference.
const mostLines = 30

// Diff returns the lines that differ between two texts, in their order: missing ones with a -, additional
// ones with a +. It is empty if they are the same.
func Diff(want, got []string) string {
	for len(want) > 0 && len(got) > 0 && want[0] == got[0] {
		want, got = want[1:], got[1:]
	}
	for len(want) > 0 && len(got) > 0 && want[len(want)-1] == got[len(got)-1] {
		want, got = want[:len(want)-1], got[:len(got)-1]
	}
	lines := changes(want[:min(len(want), 10*mostLines)], got[:min(len(got), 10*mostLines)])
	if len(lines) > mostLines {
		lines = append(lines[:mostLines], "…")
	}
	return strings.Join(lines, "\n")
}

// changes returns the lines outside a longest common subsequence.
func changes(want, got []string) (lines []string) {
	common := make([][]int, len(want)+1) // of want[i:] and got[j:]
	for i := range common {
		common[i] = make([]int, len(got)+1)
	}
	for i := range slices.Backward(want) {
		for j := range slices.Backward(got) {
			if common[i][j] = max(common[i+1][j], common[i][j+1]); want[i] == got[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	i, j := 0, 0
	for i < len(want) || j < len(got) {
		switch {
		case i < len(want) && j < len(got) && want[i] == got[j]:
			i, j = i+1, j+1
		case j == len(got) || i < len(want) && common[i+1][j] >= common[i][j+1]:
			lines = append(lines, "- "+want[i])
			i++
		default:
			lines = append(lines, "+ "+got[j])
			j++
		}
	}
	return lines
}
