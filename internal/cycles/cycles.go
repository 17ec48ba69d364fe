// Package cycles checks whether transactions are serializable in the order of real time.
//
// The transactions of a history append values to lists and read lists. Every value is appended once,
// so a list tells the order of its writers: the values of a key have one order, and every read must be
// the beginning of it. From that follow the edges of a graph, from transaction A to transaction B:
//
//	ww   A appended a value, B appended the next value of that key
//	wr   A appended the last value that B read
//	rw   A read a key without its next value, which B appended
//	rt   A had returned before B began
//
// A history is strictly serializable only if this graph has no cycle. A cycle tells what went wrong: a
// lost update and a read of two moments have one rw edge, write skew has two, a read of what a
// transaction wrote before it committed has none. The idea is that of the checker Elle.
package cycles

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Outcome is what the caller of a transaction learned.
type Outcome int

// The outcomes.
const (
	Committed Outcome = iota
	Refused           // nothing of it may be seen
	Unknown           // it may be there, as a whole
)

// Op is a part of a transaction: an append if Append is not 0, else a read.
type Op struct {
	Key    string
	Append int64
	Read   []int64
}

// Tx is a transaction. Begin and End are moments of one clock, around the call.
type Tx struct {
	Name       string
	Ops        []Op
	Begin, End int64
	Outcome    Outcome
}

// Anomaly is the error of a history that is not strictly serializable.
type Anomaly struct {
	// Kind is "lost" or "doubled" for a value that is not there once, "refused" for a read of a refused
	// transaction, "part" for a read of a part of one, "early" for a read of an append that was still to
	// come, "order" for reads or appends in two orders, and otherwise the edges of a cycle, sorted, such
	// as "rw ww".
	Kind string
	// Text tells what happened.
	Text string
}

func (a *Anomaly) Error() string { return a.Kind + ": " + a.Text }

func anomaly(kind, format string, args ...any) error {
	return &Anomaly{kind, fmt.Sprintf(format, args...)}
}

// Check returns an *Anomaly if history is not strictly serializable. The history ends with reads of all
// keys, so that every value that is there was read.
func Check(history []Tx) error {
	c := checker{history: history, writers: make(map[place]int), orders: make(map[string][]int64), next: make(map[place]int64)}
	for _, step := range []func() error{c.findWriters, c.findOrders, c.testReads, c.testAppends} {
		if err := step(); err != nil {
			return err
		}
	}
	c.addEdges()
	return c.findCycle()
}

// place is a value of a key.
type place struct {
	key   string
	value int64
}

// edge leads to a transaction, or to a moment: see addMoments.
type edge struct {
	to   int
	kind string
}

type checker struct {
	history []Tx
	writers map[place]int      // the transaction that appended a value
	orders  map[string][]int64 // the values of a key, in order
	next    map[place]int64    // the value after a value; after 0 comes the first
	edges   [][]edge
}

func (c *checker) findWriters() error {
	for i, tx := range c.history {
		for _, op := range tx.Ops {
			p := place{op.Key, op.Append}
			if other, known := c.writers[p]; known && op.Append != 0 {
				return fmt.Errorf("the history is malformed: %s and %s both append %d to %s", c.history[other].Name, tx.Name, op.Append, op.Key)
			}
			if op.Append != 0 {
				c.writers[p] = i
			}
		}
	}
	return nil
}

// findOrders takes the longest read of each key for its order, and tests that the others begin it.
func (c *checker) findOrders() error {
	reads := c.reads()
	for _, r := range reads {
		if len(r.values) > len(c.orders[r.key]) {
			c.orders[r.key] = r.values
		}
	}
	for _, r := range reads {
		if !slices.Equal(r.values, c.orders[r.key][:len(r.values)]) {
			return anomaly("order", "%s read %v of %s, and another transaction %v", c.history[r.by].Name, r.values, r.key, c.orders[r.key])
		}
	}
	for key, values := range c.orders {
		last := int64(0)
		for _, v := range values {
			if _, twice := c.next[place{key, v}]; twice || v == last {
				return anomaly("doubled", "%d is in %s twice: %v", v, key, values)
			}
			c.next[place{key, last}] = v
			last = v
			c.next[place{key, v}] = 0
		}
	}
	return nil
}

// read is what a transaction saw of a key that it had not appended to.
type read struct {
	by     int
	key    string
	values []int64
}

// reads returns the reads of committed transactions. A transaction sees its own appends: they are cut
// off.
func (c *checker) reads() (all []read) {
	for i, tx := range c.history {
		if tx.Outcome != Committed {
			continue
		}
		own := make(map[string]int)
		for _, op := range tx.Ops {
			if op.Append != 0 {
				own[op.Key]++
				continue
			}
			all = append(all, read{i, op.Key, op.Read[:max(len(op.Read)-own[op.Key], 0)]})
		}
	}
	return all
}

// testReads tests that only committed transactions were seen, each as a whole, and its own appends by
// each transaction.
func (c *checker) testReads() error {
	for _, r := range c.reads() {
		if len(r.values) == 0 {
			continue
		}
		last := r.values[len(r.values)-1]
		for _, v := range r.values {
			by, known := c.writers[place{r.key, v}]
			if !known || c.history[by].Outcome == Refused {
				return anomaly("refused", "%s read %d of %s, which no transaction has committed", c.history[r.by].Name, v, r.key)
			}
			if by == r.by {
				return anomaly("early", "%s read its own %d of %s before it appended it, or twice", c.history[r.by].Name, v, r.key)
			}
		}
		if by := c.writers[place{r.key, last}]; c.lastOf(by, r.key) != last {
			return anomaly("part", "%s read %s up to %d, but %s appended more", c.history[r.by].Name, r.key, last, c.history[by].Name)
		}
	}
	for _, tx := range c.history {
		own := make(map[string][]int64)
		for _, op := range tx.Ops {
			if op.Append != 0 {
				own[op.Key] = append(own[op.Key], op.Append)
			} else if n := len(own[op.Key]); tx.Outcome == Committed && (len(op.Read) < n || !slices.Equal(op.Read[len(op.Read)-n:], own[op.Key])) {
				return anomaly("part", "%s read %v of %s after it had appended %v", tx.Name, op.Read, op.Key, own[op.Key])
			}
		}
	}
	return nil
}

func (c *checker) lastOf(tx int, key string) (last int64) {
	for _, op := range c.history[tx].Ops {
		if op.Key == key && op.Append != 0 {
			last = op.Append
		}
	}
	return last
}

// testAppends tests that all appends of a committed transaction are there, and all or none of one whose
// outcome is unknown, and that its appends to one key follow each other.
func (c *checker) testAppends() error {
	for i := range c.history {
		tx := &c.history[i]
		there, missing := 0, place{}
		last := make(map[string]int64) // by key
		for _, op := range tx.Ops {
			p := place{op.Key, op.Append}
			if op.Append == 0 {
				continue
			}
			if _, found := c.next[p]; !found {
				missing = p
				continue
			}
			there++
			if before := last[op.Key]; before != 0 && c.next[place{op.Key, before}] != op.Append {
				return anomaly("order", "%s appended %d to %s right after %d, and another value follows", tx.Name, op.Append, op.Key, before)
			}
			last[op.Key] = op.Append
		}
		switch {
		case missing == place{}:
		case tx.Outcome == Committed:
			return anomaly("lost", "%s appended %d to %s, and it is not there", tx.Name, missing.value, missing.key)
		case there > 0:
			return anomaly("part", "of %s, %d of %s is missing and other values are there", tx.Name, missing.value, missing.key)
		}
	}
	return nil
}

// addEdges builds the graph. Its nodes are the transactions and, after them, the moments.
func (c *checker) addEdges() {
	c.edges = make([][]edge, len(c.history))
	add := func(from, to int, kind string) {
		if from != to {
			c.edges[from] = append(c.edges[from], edge{to, kind})
		}
	}
	for p, next := range c.next {
		if p.value != 0 && next != 0 {
			add(c.writers[p], c.writers[place{p.key, next}], "ww")
		}
	}
	for _, r := range c.reads() {
		last := int64(0)
		if len(r.values) > 0 {
			last = r.values[len(r.values)-1]
			add(c.writers[place{r.key, last}], r.by, "wr")
		}
		if next := c.next[place{r.key, last}]; next != 0 {
			add(r.by, c.writers[place{r.key, next}], "rw")
		}
	}
	c.addMoments()
}

// addMoments adds a node for each moment at which a committed transaction returned. A transaction leads
// to the moment of its end, each moment to the next one, and the last moment before a transaction began
// to that transaction. So there are as many edges as transactions, and not their square.
func (c *checker) addMoments() {
	var ended, begun []int
	for i, tx := range c.history {
		if tx.Outcome == Committed {
			ended = append(ended, i)
		}
		if tx.Outcome == Committed || c.isThere(i) {
			begun = append(begun, i)
		}
	}
	slices.SortFunc(ended, func(a, b int) int { return cmp.Compare(c.history[a].End, c.history[b].End) })
	slices.SortFunc(begun, func(a, b int) int { return cmp.Compare(c.history[a].Begin, c.history[b].Begin) })
	first := len(c.history)
	for n, tx := range ended {
		c.edges = append(c.edges, nil)
		c.edges[tx] = append(c.edges[tx], edge{first + n, "rt"})
		if n > 0 {
			c.edges[first+n-1] = append(c.edges[first+n-1], edge{first + n, "rt"})
		}
	}
	moments := 0
	for _, tx := range begun {
		for moments < len(ended) && c.history[ended[moments]].End < c.history[tx].Begin {
			moments++
		}
		if moments > 0 {
			c.edges[first+moments-1] = append(c.edges[first+moments-1], edge{tx, "rt"})
		}
	}
}

// isThere reports whether an append of tx was read.
func (c *checker) isThere(tx int) bool {
	return slices.ContainsFunc(c.history[tx].Ops, func(op Op) bool {
		_, found := c.next[place{op.Key, op.Append}]
		return op.Append != 0 && found
	})
}

// findCycle returns an *Anomaly for the shortest cycle through the first node that is in one.
func (c *checker) findCycle() error {
	for _, node := range c.inCycles() {
		if path := c.shortest(node); path != nil {
			return c.describe(node, path)
		}
	}
	return nil
}

// inCycles returns the transactions that may be in a cycle: those that remain when nodes without edges
// into them are removed again and again, and then nodes without edges out of them.
func (c *checker) inCycles() (nodes []int) {
	backwards := make([][]int, len(c.edges))
	forwards := make([][]int, len(c.edges))
	for from, edges := range c.edges {
		for _, e := range edges {
			forwards[from] = append(forwards[from], e.to)
			backwards[e.to] = append(backwards[e.to], from)
		}
	}
	gone := make([]bool, len(c.edges))
	peel(forwards, gone)
	peel(backwards, gone)
	for node := range c.history {
		if !gone[node] {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// peel marks the nodes that no path from a cycle leads to.
func peel(edges [][]int, gone []bool) {
	degree := make([]int, len(edges))
	for from := range edges {
		for _, to := range edges[from] {
			if !gone[from] {
				degree[to]++
			}
		}
	}
	var free []int
	for node := range edges {
		if degree[node] == 0 && !gone[node] {
			free = append(free, node)
		}
	}
	for len(free) > 0 {
		node := free[len(free)-1]
		free = free[:len(free)-1]
		gone[node] = true
		for _, to := range edges[node] {
			if degree[to]--; degree[to] == 0 && !gone[to] {
				free = append(free, to)
			}
		}
	}
}

// shortest returns the edges of a shortest cycle through start, nil if there is none.
func (c *checker) shortest(start int) []edge {
	type step struct {
		before int // in steps
		edge   edge
	}
	steps, seen := []step{{-1, edge{start, ""}}}, map[int]bool{}
	for i := 0; i < len(steps); i++ {
		for _, e := range c.edges[steps[i].edge.to] {
			if e.to == start {
				path := []edge{e}
				for s := i; s > 0; s = steps[s].before {
					path = append(path, steps[s].edge)
				}
				slices.Reverse(path)
				return path
			}
			if !seen[e.to] {
				seen[e.to] = true
				steps = append(steps, step{i, e})
			}
		}
	}
	return nil
}

// describe returns the anomaly of a cycle. Moments are left out.
func (c *checker) describe(start int, path []edge) error {
	var kinds []string
	var text strings.Builder
	text.WriteString(c.history[start].Name)
	pending := ""
	for _, e := range path {
		if e.to >= len(c.history) {
			pending = "rt"
			continue
		}
		kind := cmp.Or(pending, e.kind)
		pending = ""
		kinds = append(kinds, kind)
		fmt.Fprintf(&text, " -%s-> %s", kind, c.history[e.to].Name)
	}
	slices.Sort(kinds)
	return &Anomaly{strings.Join(kinds, " "), text.String()}
}
