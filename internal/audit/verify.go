package audit

import (
	"context"
	"fmt"
	"runtime"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sync/errgroup"
)

// Config is what an auditor knows of a log from elsewhere.
type Config struct {
	// Keys are those that sign its checkpoints. Each has the log's name, as it was when the key was in use. Without keys no
	// signature is looked at.
	Keys note.Verifiers
	// Trusted are checkpoints that the auditor has opened before, and kept.
	Trusted []Checkpoint
	// Progress is told now and then how many entries are done, and how many there are; nil for nobody.
	Progress func(done, of int64)
}

// batchSize is how many items are looked at at a time, about.
const batchSize = 512

// Verify reads a ledger and says what is wrong with it. The error is that of reading, or of ctx: then nothing is said.
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

// batch is some items in order, and what was made of each entry among them.
type batch struct {
	items  []Item
	made   []*parsed // by place of the item
	parsed chan struct{}
}

// split makes batches that never part an entry from what comes right after it.
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

// parsed is an entry, what it says, and what is wrong with it by itself.
type parsed struct {
	entry   Entry
	body    *body // nil when it cannot be read
	hash    tlog.Hash
	flaws   []Finding
	row     []string // of issuances, that lies with it
	differs []Finding
}

// parse does all that can be done without the entries before.
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

// owns tells whether a row lies with its entry.
func (p *parsed) owns(row Row) bool {
	return p != nil && p.row == nil && p.body != nil && p.body.begins() && row.Table == Issuances &&
		row.Values[0] == p.body.ID && row.index() == p.entry.Index
}

// compare holds what cannot change of a row to the entry that it lies with.
func (p *parsed) compare() {
	p.differs = Issuances.differ(p.entry.Index, p.body.issuance(p.entry.Index)[:len(lasting)], p.row, 0)
}

func parseEntry(e Entry) *parsed {
	p := &parsed{entry: e, hash: tlog.RecordHash(e.Body)}
	body, err := readBody(e.Body)
	switch {
	case err != nil:
		p.flaw(Unreadable, "", "its body is not what an entry says: "+show(err.Error()))
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

// verification is what Verify knows so far.
type verification struct {
	cfg      Config
	size     int64 // that the head says
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
	case with != nil: // taken with its entry
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
