package rehearsal

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Values is what fakes keep, by keys; one that is not there is empty.
type Values map[string]string

// Add adds to the number of a key, from 0, and gives the sum. It panics if the value is
// no number.
func (v Values) Add(key string, n int) int {
	sum := n
	if text := v[key]; text != "" {
		old, err := strconv.Atoi(text)
		if err != nil {
			panic(fmt.Sprintf("the value of %q is %q, and no number", key, text))
		}
		sum += old
	}
	v[key] = strconv.Itoa(sum)
	return sum
}

// Draft is a copy to be changed; of nil too.
func (v Values) Draft() Values {
	draft := Values{}
	maps.Copy(draft, v)
	return draft
}

// Text is the values, one a line, in the order of their keys, without those that are
// empty or 0: to Add they are the same as none.
func (v Values) Text() string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(v)) {
		if value := v[key]; value != "" && value != "0" {
			fmt.Fprintf(&b, "%s: %s\n", key, value)
		}
	}
	return b.String()
}
