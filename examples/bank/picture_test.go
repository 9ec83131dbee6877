package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/interlock-dev/interlock/internal/picture"
)

// tones are the colours of a picture; the terminal's are in narrator_test.go.
var tones = map[tone]picture.Tone{good: picture.Good, bad: picture.Bad}

// draw writes the timeline of a run on etcd into the directory STORY_PICTURES, if there is one.
func (t *timeline) draw() error {
	dir := os.Getenv("STORY_PICTURES")
	if dir == "" || t.s.backend != "etcd" || !t.s.holds {
		return nil
	}
	s := picture.Sequence{Title: "A worker is stopped past its lease: " + t.s.title(),
		Lanes: []string{"worker A", "worker B", "PostgreSQL"}}
	for _, r := range t.rows {
		row := picture.Row{At: fmt.Sprintf("%.2f s", r.at.Seconds())}
		for lane, text := range r.cells {
			rest, paused := strings.CutPrefix(text, "|")
			cell := picture.Cell{Lane: lane, To: lane, Text: strings.TrimSpace(rest), Paused: paused}
			if lane == database || lane == laneA && t.s.mode == "broken" {
				cell.Tone = tones[r.tone]
			}
			row.Cells = append(row.Cells, cell)
		}
		s.Rows = append(s.Rows, row)
	}
	return os.WriteFile(filepath.Join(dir, "pause-"+t.s.mode+".svg"), []byte(s.SVG()), 0o644)
}
