package saga

import "encoding/json"

// undoer is the step whose undo takes p back; nil if there is none. In a saga whose
// steps are a list that is p's own, which has chosen how its calls are made. Undoing
// does not depend on that: what the list does not have any more is undone as the known
// step of the undo's name.
func (c *execution) undoer(p *progress) *step {
	if !c.listed {
		c.all, c.listed = c.plan.listed(c.m.input), true
	}
	for i := range c.all {
		if s := &c.all[i]; s.key == p.key && s.undo == p.undo && s.back != nil {
			return s
		}
	}
	return c.plan.undoOf(p.undo)
}

// listed is the steps of a saga as its list has them; none if that fails by now.
func (p plan) listed(input json.RawMessage) (all []step) {
	defer func() { _ = recover() }() // then there are none
	stages, err := p.stages(input)
	if err != nil {
		return nil
	}
	for _, st := range stages {
		all = append(all, st.steps...)
	}
	return all
}
