// Package advise recommends what to use, from a few questions. It knows only
// guide.yaml and nothing of the user's systems: its advice is as good as the user's
// answers.
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
