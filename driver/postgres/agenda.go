package postgres

import "container/heap"

// agenda is the slots where a contender has to try, the earliest first.
type agenda []*slot

// schedule puts s where it belongs. Who asks or holds is not waited for.
func (a *agenda) schedule(s *slot) {
	s.due = never
	for _, c := range s.queue {
		if s.asking == nil && c.wanted && c.counter == 0 {
			s.due = min(s.due, c.due)
		}
	}
	switch {
	case s.due == never && s.place >= 0:
		heap.Remove(a, s.place)
	case s.due < never && s.place < 0:
		heap.Push(a, s)
	case s.due < never:
		heap.Fix(a, s.place)
	}
}

// Len, Less, Swap, Push and Pop are of heap.Interface.
func (a agenda) Len() int           { return len(a) }
func (a agenda) Less(i, j int) bool { return a[i].due < a[j].due }
func (a agenda) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].place, a[j].place = i, j
}

func (a *agenda) Push(x any) {
	s := x.(*slot)
	s.place = len(*a)
	*a = append(*a, s)
}

func (a *agenda) Pop() any {
	last := len(*a) - 1
	s := (*a)[last]
	s.place = -1
	(*a)[last] = nil
	*a = (*a)[:last]
	return s
}
