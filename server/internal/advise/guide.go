// Package advise answers what to use, from a few questions. It knows what is
// written in guide.yaml and nothing of the user's systems: its answers are as
// good as the user's own.
package advise

import (
	"bytes"
	_ "embed"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

//go:embed guide.yaml
var text []byte

// Guides is everything that is known: questions, and decision tables over them.
type Guides struct {
	Questions []Question
	Guides    []Guide
}

// A Question has the answers that it can have.
type Question struct {
	ID      string
	Ask     string
	Why     string // it is asked
	Answers []Answer
}

// An Answer is one of a question's.
type Answer struct {
	ID   string
	Says string
}

// A Guide is a table: the first row that fits the answers is the advice.
type Guide struct {
	ID    string
	Title string
	Asks  []string // the questions, in order
	Rows  []Row
}

// A Row is one piece of advice, and when it fits.
type Row struct {
	// When names for some questions the answers that fit; a question that it
	// does not name may be answered anyhow.
	When      map[string][]string `json:"when"`
	Choose    string              `json:"choose"`
	Reason    string              `json:"reason"`
	Risk      string              `json:"risk"`
	Avoid     string              `json:"avoid"`
	Checklist []string            `json:"checklist"`
	Lang      string              `json:"language"` // of Code: go or sql
	Code      string              `json:"code"`
}

// Load reads the guides that the program carries.
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

// UnmarshalYAML sets what a row need not say: that its code is Go.
func (r *Row) UnmarshalYAML(node *yaml.Node) error {
	type plain Row
	p := plain{Lang: "go"}
	if err := node.Decode(&p); err != nil {
		return err
	}
	*r = Row(p)
	return nil
}

// validate finds names that lead nowhere.
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

// Question finds a question.
func (g *Guides) Question(id string) (Question, bool) {
	i := slices.IndexFunc(g.Questions, func(q Question) bool { return q.ID == id })
	if i < 0 {
		return Question{}, false
	}
	return g.Questions[i], true
}

// Guide finds a guide.
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

// IDs lists the answers' ids, in order.
func (q Question) IDs() []string {
	ids := make([]string, len(q.Answers))
	for i, a := range q.Answers {
		ids[i] = a.ID
	}
	return ids
}

// Choose is the advice for answers, by question: the first row that fits. ok is
// false if a question that the guide asks has no answer.
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
