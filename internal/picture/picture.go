// Package picture draws the diagrams of the docs as SVG: sequences in time, bars and
// decision lists. It measures no fonts: texts are wrapped by an average width of letters. A
// picture follows the reader's light or dark theme, and contains its content as text.
package picture

import (
	"fmt"
	"html"
	"strings"
)

// letter is the average width of a letter at the font size of texts, in pixels; line is the
// height of a line.
const (
	letter = 7.4
	line   = 18
)

// canvas is the elements of an SVG.
type canvas struct {
	strings.Builder
}

const style = `<style>
text{font:13px system-ui,sans-serif;fill:#1f2328}.head{font-weight:600}.dim,.time{fill:#656d76}.time{text-anchor:end}
.bad{fill:#b42318}.good{fill:#067647}.page{fill:#fff}.box{fill:#f6f8fa;stroke:#d0d7de}.life,.arrow{stroke:#8c959f;fill:none}
.pause{fill:#d0d7de}.dot{fill:#57606a}.bar{fill:#2f6feb}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.dim,.time{fill:#8d96a0}.bad{fill:#ff9492}.good{fill:#57d9a3}.page{fill:#0d1117}
.box{fill:#161b22;stroke:#30363d}.pause{fill:#484f58}.dot{fill:#9198a1}}
</style>
`

// finish wraps the elements. alt is the text alternative.
func (c *canvas) finish(width, height int, title, alt string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="title desc">
<title id="title">%s</title>
<desc id="desc">%s</desc>
%s<rect class="page" width="%d" height="%d" rx="6"/>
%s</svg>
`, width, height, width, height, html.EscapeString(title), html.EscapeString(alt), style, width, height, c.String())
}

func (c *canvas) rect(class string, x, y, width, height int) {
	fmt.Fprintf(c, `<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="3"/>`+"\n", class, x, y, width, height)
}

func (c *canvas) text(class string, x, y int, text string) {
	fmt.Fprintf(c, `<text class="%s" x="%d" y="%d">%s</text>`+"\n", class, x, y, html.EscapeString(text))
}

// lines writes a text in several lines, and returns their number.
func (c *canvas) lines(class string, x, y, width int, text string) int {
	wrapped := wrap(text, width)
	for i, part := range wrapped {
		c.text(class, x, y+i*line, part)
	}
	return len(wrapped)
}

// wrap breaks a text into lines of at most width pixels, between words.
func wrap(text string, width int) (lines []string) {
	most := int(float64(width) / letter)
	for word := range strings.FieldsSeq(text) {
		if last := len(lines) - 1; last >= 0 && len(lines[last])+1+len(word) <= most {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}
