package uses

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// goals are the most lines of a use.
var goals = map[string]int{"lock a thing": 6, "elect a leader": 8, "outbox in a transaction, with its relay": 8,
	"saga of three steps, with undo and runtime": 20, "TCC": 14, "two-phase commit": 14}

var made = regexp.MustCompile(`^\t(\w+(?:, \w+)*) :=`)

// count gives the lines of a use, and the objects that it keeps: variables but for errors.
// A check of an error is part of the line that it belongs to.
func count(text string) (lines, objects int) {
	all := strings.Split(strings.Trim(text, "\n"), "\n")
	for i := 0; i < len(all); i++ {
		line := strings.TrimSpace(all[i])
		if m := made.FindStringSubmatch(all[i]); m != nil {
			for _, name := range strings.Split(m[1], ", ") {
				if name != "err" && name != "_" {
					objects++
				}
			}
		}
		if strings.HasPrefix(line, "if err") {
			i += 2
		}
		if line != "" && !strings.HasPrefix(line, "//") && line != "if err != nil {" {
			lines++
		}
	}
	return lines, objects
}

// TestUses: docs/reference/uses.md says how many lines each use has, and none exceeds its goal.
func TestUses(t *testing.T) {
	source, err := os.ReadFile("uses.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/reference/uses.md")
	if err != nil {
		t.Fatal(err)
	}
	uses := regexp.MustCompile(`(?s)// use: ([^\n]+)\n(.*?)\n\t// end`).FindAllStringSubmatch(string(source), -1)
	if len(uses) != 12 {
		t.Errorf("%d uses", len(uses))
	}
	for _, u := range uses {
		lines, objects := count(u[2])
		if goal, ok := goals[u[1]]; ok && lines > goal {
			t.Errorf("%s: %d lines, the goal is %d", u[1], lines, goal)
		}
		if row := fmt.Sprintf("| %s | %d | %d |", u[1], lines, objects); !strings.Contains(string(page), row) {
			t.Errorf("docs/reference/uses.md has no %q", row)
		}
	}
}
