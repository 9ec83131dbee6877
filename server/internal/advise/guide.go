// Package advise recommends what to use, from a few questions. It knows only
// guide.yaml and nothing of the user's systems: its advice is as good as the user's
// answers.
package advise

import (
	"bufio"
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed guide.yaml
var text []byte

// Guides has all questions, and the decision tables over them.
type Guides struct {
	Questions []Question
	Guides    []Guide
}

// A Question has its possible answers.
type Question struct {
	ID      string
	Ask     string
	Why     string // the reason for the question
	Answers []Answer
}

// An Answer is one answer of a question.
type Answer struct {
	ID   string
	Says string
}

// A Guide is a table: the first row that matches the answers is the advice.
type Guide struct {
	ID    string
	Title string
	Asks  []string // the questions, in order
	Rows  []Row
}

// A Row is one piece of advice and its condition.
type Row struct {
	// When lists the matching answers of some questions; a question that is not
	// listed matches any answer.
	When      map[string][]string `json:"when"`
	Choose    string              `json:"choose"`
	Reason    string              `json:"reason"`
	Risk      string              `json:"risk"`
	Avoid     string              `json:"avoid"`
	Checklist []string            `json:"checklist"`
	Lang      string              `json:"language"` // of Code: go or sql
	Code      string              `json:"code"`
}

// Load returns the embedded guides.
func Load() (*Guides, error) { return parse(text) }

func parse(text []byte) (*Guides, error) {
	g := new(Guides)
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(g); err != nil {
		return nil, fmt.Errorf("read the guides: %w", err)
	}
	return g, g.validate()
}

// UnmarshalYAML sets the default language of code, which is Go.
func (r *Row) UnmarshalYAML(node *yaml.Node) error {
	type plain Row
	p := plain{Lang: "go"}
	if err := node.Decode(&p); err != nil {
		return err
	}
	*r = Row(p)
	return nil
}

// validate rejects unknown names.
func (g *Guides) validate() error {
	for _, guide := range g.Guides {
		for _, id := range guide.Asks {
			if _, ok := g.Question(id); !ok {
				return fmt.Errorf("guide %s asks %q, which is no question", guide.ID, id)
			}
		}
		for _, row := range guide.Rows {
			if err := g.validateWhen(guide, row); err != nil {
				return fmt.Errorf("guide %s, %q: %w", guide.ID, row.Choose, err)
			}
		}
	}
	return nil
}

func (g *Guides) validateWhen(guide Guide, row Row) error {
	for id, answers := range row.When {
		if !slices.Contains(guide.Asks, id) {
			return fmt.Errorf("it depends on %q, which the guide does not ask", id)
		}
		q, _ := g.Question(id)
		for _, a := range answers {
			if !q.Has(a) {
				return fmt.Errorf("%q is no answer to %s", a, id)
			}
		}
	}
	return nil
}

// Question returns a question by its id.
func (g *Guides) Question(id string) (Question, bool) {
	i := slices.IndexFunc(g.Questions, func(q Question) bool { return q.ID == id })
	if i < 0 {
		return Question{}, false
	}
	return g.Questions[i], true
}

// Guide returns a guide by its id.
func (g *Guides) Guide(id string) (Guide, bool) {
	i := slices.IndexFunc(g.Guides, func(guide Guide) bool { return guide.ID == id })
	if i < 0 {
		return Guide{}, false
	}
	return g.Guides[i], true
}

// Has reports whether an answer is one of q's.
func (q Question) Has(answer string) bool {
	return slices.ContainsFunc(q.Answers, func(a Answer) bool { return a.ID == answer })
}

// IDs returns the answers' ids, in order.
func (q Question) IDs() []string {
	ids := make([]string, len(q.Answers))
	for i, a := range q.Answers {
		ids[i] = a.ID
	}
	return ids
}

// Choose returns the first row that matches the answers, which are by question. ok
// is false if a question of the guide has no answer.
func (guide Guide) Choose(answers map[string]string) (row Row, ok bool) {
	for _, id := range guide.Asks {
		if answers[id] == "" {
			return Row{}, false
		}
	}
	for _, r := range guide.Rows {
		if r.fits(answers) {
			return r, true
		}
	}
	return Row{}, false
}

func (r Row) fits(answers map[string]string) bool {
	for id, allowed := range r.When {
		if !slices.Contains(allowed, answers[id]) {
			return false
		}
	}
	return true
}

// ErrQuit is returned by Ask when the user or the input ends.
var ErrQuit = errors.New("ended without an answer")

// Ask asks the questions of a guide that have no answer yet, one by one, and stores the
// answers. An answer is a number or an id; "why" explains the question, "back" returns to
// the one before.
func (g *Guides) Ask(guide Guide, answers map[string]string, in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	var open []Question
	for _, id := range guide.Asks {
		if q, _ := g.Question(id); answers[id] == "" {
			open = append(open, q)
		}
	}
	for i := 0; i < len(open); {
		step, err := ask(open[i], answers, lines, out)
		if err != nil {
			return err
		}
		i = max(0, i+step)
	}
	return nil
}

// ask asks one question once, and returns the number of questions to move by.
func ask(q Question, answers map[string]string, lines *bufio.Scanner, out io.Writer) (step int, err error) {
	fmt.Fprintf(out, "\n%s\n", q.Ask)
	for i, a := range q.Answers {
		fmt.Fprintf(out, "  %2d  %s\n", i+1, a.Says)
	}
	for {
		fmt.Fprintf(out, "1-%d, back, why, quit: ", len(q.Answers))
		if !lines.Scan() {
			return 0, errors.Join(ErrQuit, lines.Err())
		}
		word := strings.ToLower(strings.TrimSpace(lines.Text()))
		switch word {
		case "why":
			fmt.Fprintf(out, "%s\n", q.Why)
			continue
		case "back":
			return -1, nil
		case "quit":
			return 0, ErrQuit
		}
		if n, err := strconv.Atoi(word); err == nil && n >= 1 && n <= len(q.Answers) {
			word = q.Answers[n-1].ID
		}
		if q.Has(word) {
			answers[q.ID] = word
			return 1, nil
		}
	}
}

// Markdown returns the page docs/explanation/choosing.md. Only the command prints the checklist
// and the code of a row.
func (g *Guides) Markdown() string {
	var b strings.Builder
	b.WriteString("# Choosing\n\n<!-- Written by: go test ./server/internal/advise -update -->\n\n" +
		"Which mechanism, backend and protocol fits? Answer the questions of a guide. The first row that fits is the advice.\n" +
		"The command asks the same questions, and adds a checklist and code:\n\n```sh\ninterlock advise mechanism\n```\n")
	for _, guide := range g.Guides {
		guide.markdown(&b)
	}
	b.WriteString("\n## The questions\n")
	for _, q := range g.Questions {
		fmt.Fprintf(&b, "\n**%s** (`%s`) %s\n\n", q.Ask, q.ID, q.Why)
		for _, a := range q.Answers {
			fmt.Fprintf(&b, "- `%s`: %s\n", a.ID, a.Says)
		}
	}
	return b.String()
}

func (guide Guide) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n\n`interlock advise %s`\n\n| | when | advice |\n|---|---|---|\n", guide.Title, guide.ID)
	for i, r := range guide.Rows {
		fmt.Fprintf(b, "| %d | %s | %s |\n", i+1, r.when(guide.Asks), r.Choose)
	}
	b.WriteString("\n")
	for i, r := range guide.Rows {
		fmt.Fprintf(b, "%d. **%s.** %s *Risk:* %s *Avoid:* %s\n", i+1, r.Choose, r.Reason, r.Risk, r.Avoid)
	}
}

// when returns the conditions in the order of the questions.
func (r Row) when(asks []string) string {
	var conditions []string
	for _, id := range asks {
		if answers := r.When[id]; len(answers) > 0 {
			conditions = append(conditions, fmt.Sprintf("%s: %s", id, strings.Join(answers, " or ")))
		}
	}
	if len(conditions) == 0 {
		return "otherwise"
	}
	return strings.Join(conditions, "; ")
}

// Text returns a row for a terminal.
func (r Row) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n  why     %s\n  risk    %s\n  avoid   %s\n", r.Choose, r.Reason, r.Risk, r.Avoid)
	b.WriteString("\nbefore you start:\n")
	for _, c := range r.Checklist {
		fmt.Fprintf(&b, "  [ ] %s\n", c)
	}
	b.WriteString("\n")
	for line := range strings.Lines(strings.TrimRight(r.Code, "\n")) {
		b.WriteString("    " + strings.TrimRight(line, "\n") + "\n")
	}
	return b.String()
}
