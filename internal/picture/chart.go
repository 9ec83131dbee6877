package picture

import (
	"fmt"
	"math"
)

// A Chart shows numbers as bars on a logarithmic scale. Without bars it is only a title.
type Chart struct {
	Title string
	Bars  []Bar
	Line  float64 // the value at which a line crosses all bars; 0 draws none
}

// A Bar is one number. Value is above 0; Text is its label.
type Bar struct {
	Name  string
	Value float64
	Text  string
	Goal  float64 // the value at which a mark is drawn; 0 draws none
}

// SVG draws the chart.
func (c Chart) SVG() string {
	const width, gap = 460, 26
	names, scale := c.names(), c.scale(width)
	var out canvas
	out.text("head", 10, 24, c.Title)
	alt, bottom := "", 40+len(c.Bars)*gap
	for i, b := range c.Bars {
		y := 40 + i*gap
		length := scale(b.Value)
		out.text("", 10, y+14, b.Name)
		out.rect("bar", names, y, length, 18)
		if b.Goal > 0 {
			out.rect("dot", names+scale(b.Goal)-1, y-2, 3, 22)
			length = max(length, scale(b.Goal)+4)
		}
		out.text("", names+length+8, y+14, b.Text)
		alt += fmt.Sprintf("%s: %s. ", b.Name, b.Text)
	}
	if c.Line > 0 && len(c.Bars) > 0 {
		fmt.Fprintf(&out, `<path class="life" d="M%d 36V%d"/>`+"\n", names+scale(c.Line), bottom)
	}
	return out.finish(names+width+90, bottom+10, c.Title, alt)
}

// names returns the width of the longest name.
func (c Chart) names() int {
	longest := 160
	for _, b := range c.Bars {
		longest = max(longest, 20+int(letter*float64(len([]rune(b.Name)))))
	}
	return longest
}

// scale returns a function from a value to a length of at most width.
func (c Chart) scale(width float64) func(value float64) int {
	low, high := math.Inf(1), 0.0
	for _, b := range c.Bars {
		for _, value := range []float64{b.Value, b.Goal, c.Line} {
			if value > 0 {
				low, high = min(low, value), max(high, value)
			}
		}
	}
	low /= 3 // so that the shortest bar is visible
	return func(value float64) int { return int(width * math.Log(value/low) / math.Log(high/low)) }
}

// Decisions shows a list of rules, of which the first that matches applies.
type Decisions struct {
	Title string
	Rules []Rule
}

// A Rule is an action and its condition. An empty condition always matches.
type Rule struct{ When, Then string }

// SVG draws the decisions.
func (d Decisions) SVG() string {
	const box, gap = 430, 40
	var c canvas
	c.text("head", 10, 24, d.Title)
	y, alt := 40, ""
	for i, rule := range d.Rules {
		when := rule.When
		if when == "" {
			when = "otherwise"
		}
		height := max(len(wrap(when, box-20)), len(wrap(rule.Then, box-20)))*line + 12
		c.rect("box", 10, y, box, height)
		c.lines("dim", 20, y+18, box-20, when)
		fmt.Fprintf(&c, `<path class="arrow" d="M%d %dh%dl-5 -4m5 4l-5 4"/>`+"\n", 10+box, y+height/2, gap-4)
		c.rect("box", 10+box+gap, y, box, height)
		c.lines("head", 20+box+gap, y+18, box-20, rule.Then)
		if i < len(d.Rules)-1 {
			fmt.Fprintf(&c, `<path class="arrow" d="M%d %dv%dl-4 -5m4 5l4 -5"/>`+"\n", 40, y+height, 14)
			c.text("dim", 50, y+height+13, "no")
		}
		y += height + 18
		alt += "If " + when + ": " + rule.Then + ". "
	}
	return c.finish(2*box+gap+20, y, d.Title, alt)
}

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
