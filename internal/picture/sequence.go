package picture

import "fmt"

// Tone is the colour of a text.
type Tone string

// The tones. The zero value is the normal one.
const (
	Normal Tone = ""
	Bad    Tone = "bad"
	Good   Tone = "good"
	Dim    Tone = "dim"
)

// A Sequence shows events over time, with a lane for each process or store.
type Sequence struct {
	Title string
	Lanes []string
	Rows  []Row
}

// A Row is one point in time.
type Row struct {
	At    string // the time; may be empty
	Cells []Cell
}

// A Cell is an event in a lane.
type Cell struct {
	Lane   int
	Text   string
	Tone   Tone
	To     int  // the target lane of an arrow; the cell's own lane means none
	Paused bool // the lane is paused in this row
}

const (
	timeWidth = 70
	laneWidth = 240
	rowGap    = 8
	headGap   = 44
)

// SVG draws the sequence.
func (s Sequence) SVG() string {
	var c canvas
	y, bottom := headGap+20, s.bottom()
	for i, name := range s.Lanes {
		c.rect("box", laneX(i), 10, laneWidth-20, 26)
		c.text("head", laneX(i)+10, 28, name)
		fmt.Fprintf(&c, `<path class="life" d="M%d 36V%d"/>`+"\n", laneX(i)+4, bottom-10)
	}
	alt := ""
	for _, row := range s.Rows {
		height := row.height()
		if row.At != "" {
			c.text("time", timeWidth-6, y, row.At)
		}
		for _, cell := range row.Cells {
			alt += s.cell(&c, cell, y, height)
		}
		y += height
	}
	return c.finish(timeWidth+len(s.Lanes)*laneWidth, bottom, s.Title, alt)
}

// cell draws a cell, and returns its text alternative.
func (s Sequence) cell(c *canvas, cell Cell, y, height int) string {
	x := laneX(cell.Lane)
	if cell.Paused {
		c.rect("pause", x, y-13, 8, height)
	}
	if cell.Text == "" {
		return ""
	}
	if !cell.Paused {
		fmt.Fprintf(c, `<circle class="dot" cx="%d" cy="%d" r="4"/>`+"\n", x+4, y-4)
	}
	c.lines(string(cell.Tone), x+14, y, laneWidth-34, cell.Text)
	if cell.To != cell.Lane {
		s.arrow(c, cell, y)
	}
	return s.Lanes[cell.Lane] + ": " + cell.Text + ". "
}

// arrow draws a line from below a cell's text to the target lane.
func (s Sequence) arrow(c *canvas, cell Cell, y int) {
	y += (len(wrap(cell.Text, laneWidth-34))-1)*line + 6
	from, to, tip := laneX(cell.Lane)+14, laneX(cell.To)+4, -5
	if cell.To < cell.Lane {
		tip = 5
	}
	fmt.Fprintf(c, `<path class="arrow" d="M%d %dH%dl%d -4m%d 4l%d 4"/>`+"\n", from, y, to, tip, -tip, tip)
}

func laneX(i int) int { return timeWidth + i*laneWidth }

func (r Row) height() int {
	most := 1
	for _, cell := range r.Cells {
		most = max(most, len(wrap(cell.Text, laneWidth-34)))
	}
	return most*line + rowGap
}

func (s Sequence) bottom() int {
	y := headGap + 20
	for _, row := range s.Rows {
		y += row.height()
	}
	return y
}
