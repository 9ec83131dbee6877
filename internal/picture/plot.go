package picture

import "fmt"

// A Plot shows numbers over time, one for each second, as lines.
type Plot struct {
	Title  string
	Series []Series
	Level  Mark   // a horizontal line at that number
	Marks  []Mark // vertical lines at those seconds
}

// A Series is one line of a Plot.
type Series struct {
	Name   string
	Tone   Tone // Good or Bad
	Values []int
}

// A Mark is a line across a Plot, at a value or a second.
type Mark struct {
	At   int
	Text string
}

// SVG draws the plot.
func (p Plot) SVG() string {
	const left, top, width, height = 50, 50, 640, 200
	highest, seconds := p.Level.At, 1
	for _, s := range p.Series {
		seconds = max(seconds, len(s.Values))
		for _, v := range s.Values {
			highest = max(highest, v)
		}
	}
	x := func(second int) int { return left + second*width/seconds }
	y := func(value int) int { return top + height - value*height/max(1, highest) }
	var c canvas
	c.WriteString(`<style>.line{fill:none;stroke-width:2.5}.line.good{stroke:#067647}.line.bad{stroke:#b42318}
@media (prefers-color-scheme:dark){.line.good{stroke:#57d9a3}.line.bad{stroke:#ff9492}}</style>` + "\n")
	c.text("head", 10, 24, p.Title)
	fmt.Fprintf(&c, `<path class="life" d="M%d %dV%dH%d"/>`+"\n", left, top, y(0), left+width)
	fmt.Fprintf(&c, `<path class="life" stroke-dasharray="4 4" d="M%d %dH%d"/>`+"\n", left, y(p.Level.At), left+width)
	c.text("time", left-6, y(p.Level.At)+4, fmt.Sprint(p.Level.At))
	c.text("time", left-6, y(0)+4, "0")
	c.text("dim", left+width+6, y(p.Level.At)+4, p.Level.Text)
	for _, m := range p.Marks {
		fmt.Fprintf(&c, `<path class="life" stroke-dasharray="4 4" d="M%d %dV%d"/>`+"\n", x(m.At), top, y(0))
		c.text("dim", x(m.At)+4, top+height+18, fmt.Sprintf("%d s: %s", m.At, m.Text))
	}
	alt := ""
	for _, s := range p.Series {
		fmt.Fprintf(&c, `<polyline class="line %s" points="`, s.Tone)
		for second, v := range s.Values {
			fmt.Fprintf(&c, "%d,%d ", x(second)+width/seconds/2, y(v))
		}
		c.WriteString(`"/>` + "\n")
		last := 0
		if len(s.Values) > 0 {
			last = s.Values[len(s.Values)-1]
		}
		c.text(string(s.Tone), left+width+6, y(last)-8, s.Name)
		alt += fmt.Sprintf("%s, second by second: %v. ", s.Name, s.Values)
	}
	return c.finish(left+width+150, top+height+34, p.Title, alt)
}
