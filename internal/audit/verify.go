package audit

import (
	"context"
	"fmt"
	"runtime"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sync/errgroup"
)

// Config holds what an auditor knows about a log from other sources.
type Config struct {
	// Keys are the keys that sign the log's checkpoints. Each has the name that the log had when the key was in use. Without
	// keys, Verify checks no signatures.
	Keys note.Verifiers
	// Trusted are checkpoints that the auditor has opened before and kept.
	Trusted []Checkpoint
	// Progress, unless nil, is called from time to time with the number of entries done and in total.
	Progress func(done, of int64)
}

// batchSize is the approximate number of items in a batch.
const batchSize = 512

// Verify reads a ledger and reports what is wrong with it. It returns an error only if reading fails or ctx ends, and then
// no report.
func Verify(ctx context.Context, items Items, cfg Config) (Report, error) {
	group, ctx := errgroup.WithContext(ctx)
	todo, ordered := make(chan *batch), make(chan *batch, 4*runtime.GOMAXPROCS(0))
	group.Go(func() error {
		defer close(todo)
		defer close(ordered)
		return split(items, func(b *batch) error {
			for _, to := range []chan *batch{todo, ordered} {
				select {
				case to <- b:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
	})
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() error {
			for b := range todo {
				b.parse()
			}
			return nil
		})
	}
	v := &verification{cfg: cfg, state: newState(), evidence: newEvidence(cfg)}
	for b := range ordered {
		<-b.parsed
		v.take(b)
	}
	if err := group.Wait(); err != nil {
		return Report{}, fmt.Errorf("reading the ledger: %w", err)
	}
	return v.report(), nil
}

// batch holds some items in order, and the parsed form of each entry among them.
type batch struct {
	items  []Item
	made   []*parsed // by place of the item
	parsed chan struct{}
}

// split makes batches. It never separates an entry from the items that follow it.
func split(items Items, send func(*batch) error) error {
	b := &batch{parsed: make(chan struct{})}
	for item, err := range items {
		if err != nil {
			return err
		}
		if _, is := item.(Entry); is && len(b.items) >= batchSize {
			if err := send(b); err != nil {
				return err
			}
			b = &batch{parsed: make(chan struct{})}
		}
		b.items = append(b.items, item)
	}
	return send(b)
}

// parsed is an entry, its body, and the defects that can be found without other entries.
type parsed struct {
	entry   Entry
	body    *body // nil if it cannot be read
	hash    tlog.Hash
	flaws   []Finding
	row     []string // of issuances, next to the entry
	differs []Finding
}

// parse does the work that does not need earlier entries.
func (b *batch) parse() {
	defer close(b.parsed)
	b.made = make([]*parsed, len(b.items))
	var last *parsed
	for i, item := range b.items {
		switch item := item.(type) {
		case Entry:
			last = parseEntry(item)
			b.made[i] = last
		case Row:
			if last.owns(item) {
				b.made[i], last.row = last, item.Values
				last.compare()
			}
		}
	}
}

// owns reports whether a row of issuances belongs to the entry.
func (p *parsed) owns(row Row) bool {
	return p != nil && p.row == nil && p.body != nil && p.body.begins() && row.Table == Issuances &&
		row.Values[0] == p.body.ID && row.index() == p.entry.Index
}

// compare compares the columns of a row that cannot change with the row's entry.
func (p *parsed) compare() {
	p.differs = Issuances.differ(p.entry.Index, p.body.issuance(p.entry.Index)[:len(lasting)], p.row, 0)
}

func parseEntry(e Entry) *parsed {
	p := &parsed{entry: e, hash: tlog.RecordHash(e.Body)}
	body, err := readBody(e.Body)
	switch {
	case err != nil:
		p.flaw(Unreadable, "", "its body is not a valid entry: "+show(err.Error()))
		return p
	case !canonical(e.Body):
		p.flaw(NotCanonical, "", "its body is not in canonical form")
	}
	p.body = body
	if e.ID != body.ID {
		p.flaw(ColumnDiffers, "entries.id", "the column has "+show(e.ID)+", the body says "+show(body.ID))
	}
	if e.Kind != body.Kind {
		p.flaw(ColumnDiffers, "entries.kind", "the column has "+show(e.Kind)+", the body says "+show(body.Kind))
	}
	if at := instant(e.Time); at != body.Time && !same("time", at, body.Time) {
		p.flaw(ColumnDiffers, "entries.time", "the column has "+show(at)+", the body says "+show(body.Time))
	}
	return p
}

func (p *parsed) flaw(code Code, where, what string) {
	p.flaws = append(p.flaws, Finding{Code: code, Index: p.entry.Index, Where: where, What: what})
}

// verification is the state of Verify.
type verification struct {
	cfg      Config
	size     int64 // that the head claims
	count    int64
	state    *state
	evidence *evidence
	flaws    findings
}

func (v *verification) take(b *batch) {
	for i, item := range b.items {
		switch item := item.(type) {
		case Head:
			v.size = item.Size
		case Pruned:
			v.evidence.prunes.add(item)
			v.state.pruned = v.evidence.prunes.beyond
		case Tile:
			v.evidence.tile(item)
		case Entry:
			v.entry(b.made[i])
		case SignedCheckpoint:
			v.evidence.checkpoint(item)
		case Row:
			v.row(item, b.made[i])
		}
	}
	if v.cfg.Progress != nil {
		v.cfg.Progress(v.count+v.evidence.prunes.dropped(), v.size)
	}
}

func (v *verification) entry(p *parsed) {
	v.count++
	v.flaws.add(p.flaws...)
	placed := v.evidence.entry(p.entry, p.hash)
	v.evidence.prunes.take(p.entry, p.body)
	if placed && p.body != nil {
		v.state.apply(p)
	} else if p.row != nil {
		v.state.stray(p.row)
	}
}

func (v *verification) row(row Row, with *parsed) {
	switch {
	case with != nil: // already compared with its entry
	case row.Table == Issuances:
		v.state.stray(row.Values)
	default:
		v.state.table(row)
	}
}

func (v *verification) report() Report {
	v.state.end()
	v.evidence.end(v.size)
	r := Report{
		Entries: v.count + v.evidence.prunes.dropped(), Sealed: v.evidence.good, Checkpoints: v.evidence.holds,
		Pruned: v.evidence.prunes.report(), Signatures: v.cfg.Keys != nil,
	}
	r.merge(v.evidence.entries, v.flaws, v.state.steps, v.evidence.others, v.state.projections)
	return r
}
