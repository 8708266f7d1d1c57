package audit

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
)

// state is the result of the entries up to some index.
type state struct {
	records map[uuid.UUID]*record
	// unmatched holds the expected rows of issuances that were not next to their entry. strays holds rows that were elsewhere.
	unmatched *projection
	strays    []Row

	tasks, quarantines, people, passkeys, votes, changes, head *projection
	ends                                                       map[string]taskEnd // by key of tasks
	catalogue                                                  string
	version                                                    int64
	inForceSince                                               int64 // the entry that applied the catalogue
	catalogues                                                 map[string]int64
	decided                                                    map[string]bool   // the proposals that are decided
	ballots                                                    map[string][]vote // by request

	met    map[string]time.Time // when the provider last described a person
	groups map[string][]string  // the groups of people at that time

	uses  map[uuid.UUID]use   // by issuance
	calls map[uuid.UUID]calls // by the id of the report
	keys  map[string]*held    // by the id of the passkey
	owns  map[string]*held    // by its credential
	once  map[string]bool     // digests of public keys

	pruned int64 // entries before this index were pruned, except those that are there

	steps, projections findings
}

type taskEnd struct {
	at    time.Time
	ended bool
}

func newState() *state {
	s := &state{
		records: map[uuid.UUID]*record{}, unmatched: project(Issuances), tasks: project(TaskEnds),
		quarantines: project(Quarantines), people: project(People), passkeys: project(Passkeys), votes: project(Votes), changes: project(CatalogueChanges),
		head: project(CatalogueHead), ends: map[string]taskEnd{},
		catalogues: map[string]int64{}, decided: map[string]bool{}, ballots: map[string][]vote{}, met: map[string]time.Time{},
		groups: map[string][]string{}, uses: map[uuid.UUID]use{}, calls: map[uuid.UUID]calls{},
		keys: map[string]*held{}, owns: map[string]*held{}, once: map[string]bool{},
	}
	s.head.set(-1, "true", "0", Null, Null)
	return s
}

// apply updates the state with an entry, or reports why the entry is impossible.
func (s *state) apply(p *parsed) {
	b, index := p.body, p.entry.Index
	if b.Version != 1 {
		s.steps.at(Unreadable, index, "its version is %d, and this program supports version 1", b.Version)
	}
	switch b.Kind {
	case "call.refused", "credentials.revoke", "ledger.pruned":
	case "request.denied", "request.pending", "issuance.intent":
		s.start(p)
	case "approval.vote", "approval.remembered", "approval.withdrawn":
		s.step(b, index)
	case "catalogue.proposed", "catalogue.applied", "catalogue.rejected":
		s.changeCatalogue(b, index)
	case "issuance.reported":
		s.report(b, index)
	case "calls.recorded":
		s.reportCalls(b, index)
	case "passkey.registered":
		s.register(b, index)
	case "passkey.removed":
		s.unregister(b, index)
	case "person.seen":
		s.meet(b, index)
	case "task.end":
		s.endTask(b, index)
	case "quarantine.add":
		if _, stands := s.quarantines.get(b.Target.SPIFFEID); !stands {
			s.quarantines.set(index, b.Target.SPIFFEID, b.Time, b.actor(), b.Reason, b.ID, strconv.FormatInt(index, 10))
		}
	case "quarantine.remove":
		const command = 4 // index of the column
		if row, stands := s.quarantines.get(b.Target.SPIFFEID); !stands || b.Lifts != "" && b.Lifts != row[command] {
			s.impossible(index, "it lifts a quarantine that does not exist")
		}
		delete(s.quarantines.want, b.Target.SPIFFEID)
	default: // the outcome of a record
		key, _ := id(b.ID)
		switch r := s.records[key]; {
		case b.Kind != "issuance."+b.Status:
			s.impossible(index, "no entry has the kind "+show(b.Kind))
		case r == nil:
			s.impossible(index, "it continues request "+show(b.ID)+", which no entry begins")
		case r.asked != nil || !r.mayMove(b.Status):
			s.impossible(index, "a request cannot go from "+r.status+" to "+show(b.Status))
		default:
			r.move(b)
			r.last = index
		}
	}
}

func (s *state) impossible(index int64, why string) { s.steps.at(Impossible, index, "%s", why) }

// start begins a record, and reports the entry if it is not allowed to.
func (s *state) start(p *parsed) {
	b, index := p.body, p.entry.Index
	key, ok := id(b.ID)
	if !ok || s.records[key] != nil {
		s.impossible(index, "it begins request "+show(b.ID)+" again")
		return
	}
	if !b.beginsRightly() {
		s.impossible(index, "a request cannot begin as "+show(b.Status))
	}
	if s.version > 0 && b.Decision.Catalogue != s.catalogue {
		s.impossible(index, "it was decided by a catalogue that was not in force")
	}
	if b.Kind != "request.denied" && s.forbids(b.Subject.SPIFFEID, b.Request.Task) {
		s.impossible(index, "its sandbox was quarantined, or its task had ended")
	}
	if b.Parent != nil {
		from, _ := id(*b.Parent)
		switch r := s.records[from]; {
		case r == nil || r.kind != "jwt":
			s.impossible(index, "its parent is not a token")
		default:
			r.held = true
		}
	}
	r := s.begin(p)
	s.records[key] = r
	if b.Kind == "request.pending" {
		r.asked = askedOf(b)
	}
	s.redeem(b, index)
}

// forbids reports whether a quarantine or the end of a task forbids requests of a sandbox and a task. It does not check
// deadlines: they pass by the database's clock, which entries do not record.
func (s *state) forbids(spiffeID, task string) bool {
	if s.ends[spiffeID+"\x00"+task].ended {
		return true
	}
	if len(s.quarantines.want) == 0 {
		return false
	}
	for end := len("spiffe://"); end < len(spiffeID); end++ { // each SPIFFE ID above
		next := strings.IndexByte(spiffeID[end:], '/')
		if next < 0 {
			break
		}
		end += next
		if _, stands := s.quarantines.want[spiffeID[:end]]; stands {
			return true
		}
	}
	_, stands := s.quarantines.want[spiffeID]
	return stands
}

// endTask records the end of a task, or moves it to an earlier time.
func (s *state) endTask(b *body, index int64) {
	now, err := time.Parse(time.RFC3339Nano, b.Time)
	at := now
	if b.At != nil && err == nil {
		at, err = time.Parse(time.RFC3339Nano, *b.At)
	}
	if err != nil {
		s.impossible(index, "it has no valid time")
		return
	}
	end := taskEnd{at, !at.After(now)}
	key := b.Target.SPIFFEID + "\x00" + b.Target.Task
	if before, ok := s.ends[key]; ok {
		earlier := !before.at.After(at)
		if earlier && (before.ended || !end.ended) {
			return
		}
		if earlier {
			end.at = before.at
		}
		end.ended = end.ended || before.ended
	}
	s.ends[key] = end
	s.tasks.set(index, b.Target.SPIFFEID, b.Target.Task, instant(end.at), strconv.FormatBool(end.ended), b.Time, b.ID,
		strconv.FormatInt(index, 10))
}

// stray keeps a row of issuances that is not next to the entry that begins its request.
func (s *state) stray(row []string) {
	if len(s.strays) < maxApart {
		s.strays = append(s.strays, Row{Issuances, row})
		return
	}
	s.projections.more++
}

// table compares a row of one of the tables whose rows come last.
func (s *state) table(row Row) {
	switch row.Table {
	case Catalogues:
		s.files(row)
	case Uses:
		expected := project(Uses)
		if key, ok := id(row.Values[0]); ok {
			if u, said := s.uses[key]; said {
				expected.set(u.index, u.row(key)...)
				delete(s.uses, key)
			}
		}
		expected.compare(row, &s.projections)
	case CallReports:
		expected := project(CallReports)
		if key, ok := id(row.Values[0]); ok {
			if c, said := s.calls[key]; said {
				expected.set(c.index, c.row(key)...)
				delete(s.calls, key)
			}
		}
		expected.compare(row, &s.projections)
	default:
		for _, p := range []*projection{s.tasks, s.quarantines, s.people, s.passkeys, s.votes, s.changes, s.head} {
			if p.table == row.Table {
				p.compare(row, &s.projections)
			}
		}
	}
}

// end makes the comparisons that need all entries.
func (s *state) end() {
	for _, w := range s.unmatched.want {
		if key, ok := id(w.values[0]); ok && s.records[key] != nil {
			copy(w.values[len(lasting):], s.records[key].values())
		}
	}
	s.match()
	differ, idle := map[*record]*record{}, map[*record]*record{}
	for _, r := range s.records {
		if r.now != r.row && !r.apart {
			differ[r] = r
		}
		// All its entries lie in the pruned range, and no remaining record depends on them.
		if r.last < s.pruned && r.asked == nil && !r.held {
			idle[r] = r
		}
	}
	byIndex := func(r *record) int64 { return r.index }
	for _, r := range sortedBy(idle, byIndex) {
		s.steps.at(PrunedDiffers, r.index, "it should have been dropped with the entries around it, but exists")
	}
	for _, r := range sortedBy(differ, byIndex) {
		row := r.begun()
		if r.row != nil {
			row = r.row[:]
		}
		s.projections.add(Issuances.differ(r.index, r.values(), row, len(lasting))...)
	}
	for _, p := range []*projection{s.unmatched, s.tasks, s.quarantines, s.people, s.passkeys, s.votes, s.changes, s.head} {
		p.rest(&s.projections)
	}
	for digest, index := range s.catalogues {
		s.projections.add(Finding{
			Code: ProjectionMissing, Index: index, Where: Catalogues.Name, What: "the files of catalogue " + show(digest) + " are missing",
		})
	}
	missing := project(Uses)
	for key, u := range s.uses {
		missing.set(u.index, u.row(key)...)
	}
	missing.rest(&s.projections)
	missing = project(CallReports)
	for key, c := range s.calls {
		missing.set(c.index, c.row(key)...)
	}
	missing.rest(&s.projections)
}

// match finds the entries of rows that were not next to theirs: by the id of the request, or else by the entry index in
// the row.
func (s *state) match() {
	var nameless []Row
	for _, row := range s.strays {
		if _, known := s.unmatched.get(row.Values[0]); known {
			s.unmatched.compare(row, &s.projections)
			continue
		}
		nameless = append(nameless, row)
	}
	at := map[int64]string{}
	for name, w := range s.unmatched.want {
		at[w.index] = name
	}
	for _, row := range nameless {
		if name, ok := at[row.index()]; ok {
			w := s.unmatched.want[name]
			s.projections.add(Issuances.differ(w.index, w.values, row.Values, 0)...)
			delete(s.unmatched.want, name)
			delete(at, row.index())
			continue
		}
		s.unmatched.compare(row, &s.projections)
	}
}

// changeCatalogue applies a step of a catalogue, and reports why the step is impossible if it is.
func (s *state) changeCatalogue(b *body, index int64) {
	if b.Number != s.version+1 || b.Base != s.catalogue {
		s.impossible(index, "it does not follow the catalogue in force")
	}
	if b.Proposal != "" {
		asked, ok := s.changes.get(b.Proposal)
		if !ok || asked[1] != "proposed" || asked[2] != b.Digest || asked[4] != strconv.FormatInt(b.Number, 10) || asked[7] != b.Proposer {
			s.impossible(index, "it decides on a catalogue that was not proposed")
		}
		if s.decided[b.Proposal] {
			s.impossible(index, "it decides on a proposal that is already decided")
		}
		s.decided[b.Proposal] = true
	}
	who := b.actor()
	if b.Kind == "catalogue.applied" && b.Proposal != "" && who == b.Proposer {
		s.impossible(index, "its actor applies their own proposal")
	}
	number := strconv.FormatInt(b.Number, 10)
	s.changes.set(index, b.ID, strings.TrimPrefix(b.Kind, "catalogue."), b.Digest, cmp.Or(b.Base, Null), number,
		cmp.Or(b.Proposal, Null), cmp.Or(b.Proposer, Null), who, b.Reason, b.Time, strconv.FormatInt(index, 10))
	if _, known := s.catalogues[b.Digest]; !known {
		s.catalogues[b.Digest] = index
	}
	if b.Kind == "catalogue.applied" {
		s.catalogue, s.version, s.inForceSince = b.Digest, b.Number, index
		s.head.set(index, "true", number, b.Digest, b.ID)
	}
}

// files checks the files of a catalogue against its digest. Files that no entry names do no harm: they were kept for a
// step that was refused.
func (s *state) files(row Row) {
	index, known := s.catalogues[row.Values[0]]
	if !known {
		index = -1
	}
	delete(s.catalogues, row.Values[0])
	var names, contents []string
	err := json.Unmarshal([]byte(row.Values[1]), &names)
	if err == nil {
		err = json.Unmarshal([]byte(row.Values[2]), &contents)
	}
	if err == nil && catalogueDigest(names, contents) == row.Values[0] {
		return
	}
	s.projections.add(Finding{
		Code: ProjectionDiffers, Index: index, Where: Catalogues.Name + ".contents",
		What: "the files of catalogue " + show(row.Values[0]) + " do not match its digest",
	})
}

// catalogueDigest returns the SHA-256 of a text with one line for each file: the file's SHA-256 and its name.
func catalogueDigest(names, contents []string) string {
	if len(names) != len(contents) {
		return ""
	}
	lines := make([]string, len(names))
	for i, name := range names {
		content, err := hex.DecodeString(contents[i])
		if err != nil {
			return ""
		}
		lines[i] = fmt.Sprintf("%s\x00%x  %s\n", name, sha256.Sum256(content), name)
	}
	slices.Sort(lines)
	for i, line := range lines {
		_, lines[i], _ = strings.Cut(line, "\x00")
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(strings.Join(lines, ""))))
}

// maxCalls is the largest number of uses of one credential that can be reported.
const maxCalls = 1_000_000_000

// use is the report of a credential's holder. It is small, because there may be millions.
type use struct {
	index, began, calls int64
	last, time          int64 // microseconds
}

// report records a holder's report of uses. It does not check that the report came in time.
func (s *state) report(b *body, index int64) {
	key, _ := id(b.ID)
	r := s.records[key]
	u, possible := useOf(b, r, index)
	_, again := s.uses[key]
	switch {
	case r == nil || !r.issued:
		s.impossible(index, "it reports uses of "+show(b.ID)+", which was not issued")
	case r.holder.Value() != b.actor():
		s.impossible(index, "it reports uses of "+show(b.ID)+", which has another holder")
	case again:
		s.impossible(index, "it reports uses of "+show(b.ID)+" again")
	case !possible:
		s.impossible(index, "it reports impossible uses")
	default:
		r.last = index
		s.uses[key] = u
	}
}

// useOf reads a report about a record.
func useOf(b *body, r *record, index int64) (u use, ok bool) {
	at, err := time.Parse(time.RFC3339Nano, b.Time)
	if r == nil || err != nil || b.Calls < 0 || b.Calls > maxCalls || (b.LastUsedAt == nil) != (b.Calls == 0) {
		return u, false
	}
	u = use{index: index, began: r.index, calls: b.Calls, time: at.UnixMicro()}
	if b.LastUsedAt == nil {
		return u, true
	}
	began, err := time.Parse(time.RFC3339Nano, r.time)
	last, errToo := time.Parse(time.RFC3339Nano, *b.LastUsedAt)
	u.last = last.UnixMicro()
	return u, err == nil && errToo == nil && !last.Before(began) && (!last.After(at) || last.Equal(began))
}

// row returns the row of uses for the report.
func (u use) row(issuance uuid.UUID) []string {
	last := Null
	if u.calls > 0 {
		last = instant(time.UnixMicro(u.last))
	}
	return []string{
		issuance.String(), strconv.FormatInt(u.began, 10), strconv.FormatInt(u.calls, 10), last, instant(time.UnixMicro(u.time)),
		strconv.FormatInt(u.index, 10),
	}
}
