package rehearsal

import (
	"slices"
	"strings"
)

// mostLines is how many lines a difference shows, of each snapshot how many it looks
// at.
const mostLines = 30

// Diff is what differs between two texts: lines that are missing, with a -, and lines
// that should not be there, with a +, in their order. It is empty if they are the same.
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

// changes keeps a longest common subsequence, and gives the rest.
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
