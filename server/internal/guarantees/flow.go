package guarantees

import (
	"bytes"
	_ "embed"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed flow.yaml
var flow []byte

// Section is a table that is written by hand: drivers of queues, sinks and limits report no
// guarantees.
type Section struct {
	Title, Text string
	Columns     []string
	Rows        []Row
}

// Row is one promise.
type Row struct {
	Promise string
	Cells   []string // yes, no or if, by column
	Proof   []string // for the cells other than no
	Note    string
}

// sections reads flow.yaml.
func sections() (all []Section, err error) {
	d := yaml.NewDecoder(bytes.NewReader(flow))
	d.KnownFields(true)
	if err := d.Decode(&all); err != nil {
		return nil, fmt.Errorf("flow.yaml: %w", err)
	}
	return all, nil
}

// markdown writes the section of the page.
func (s Section) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n# %s\n\n%s\n\n", s.Title, s.Text)
	gridOf(b, append(s.Columns, "proof"), len(s.Rows), func(i int) (string, []string) {
		proof := shown(s.Rows[i].Proof)
		return s.Rows[i].Promise, append(append([]string{}, s.Rows[i].Cells...), proof)
	})
	b.WriteString("\n")
	for _, r := range s.Rows {
		if r.Note != "" {
			fmt.Fprintf(b, "- %s: %s\n", strings.TrimPrefix(r.Promise, "… "), r.Note)
		}
	}
}
