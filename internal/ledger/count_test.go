package ledger_test

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"
)

// said is what judge reads of an entry to count votes.
type said struct {
	Kind, ID, Of, Detail, Verdict, Covers string
	Actor                                 any // a person for a vote, an id for an outcome
	Person                                struct {
		ID, Handle string
		Groups     []string
	}
	Decision struct {
		Approval *struct {
			Group  string
			Quorum int
		}
	}
	Approves *struct{ Request string }
	Intent   *struct{ Grant struct{ Leased bool } }
}

// poll is a request for approval, as its entries describe it.
type poll struct {
	group  string
	quorum int
	yes    map[string]string // what each approval covers, by voter
	no     bool
	of     string // the request whose votes this one reuses
	issued []string
}

// tally is the sum of a run's entries.
type tally struct {
	owner    string
	groups   map[string][]string // by person
	handles  map[string]string
	polls    map[string]*poll
	statuses map[string]string // of issuances
	leased   map[string]bool
}

// size returns how many entries there are.
func (p *polled) size(t *testing.T) (size int64) {
	t.Helper()
	if err := p.conn.QueryRow(t.Context(), `SELECT size FROM ledger_head`).Scan(&size); err != nil {
		t.Fatal(err)
	}
	return size
}

// judge reads the entries since an index, one by one, and checks each issuance against the votes until then.
func (p *polled) judge(t *testing.T, rt *rapid.T, since int64) {
	t.Helper()
	rows, err := p.conn.Query(t.Context(), `SELECT convert_from(body, 'UTF8')::jsonb FROM entries WHERE index >= $1 ORDER BY index`, since)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[said])
	if err != nil {
		t.Fatal(err)
	}
	c := tally{
		owner: p.name("alice"), groups: map[string][]string{}, handles: map[string]string{}, polls: map[string]*poll{},
		statuses: map[string]string{}, leased: map[string]bool{},
	}
	for _, e := range all {
		c.add(rt, e)
	}
	for id, asked := range c.polls {
		if p.handed[id] > 1 {
			rt.Errorf("%s: the sandbox was handed %d credentials", id, p.handed[id])
		}
		for _, issuance := range asked.issued {
			if status := c.statuses[issuance]; c.refused(asked) && (status == "issued" || status == "intent") {
				rt.Errorf("%s: after a no, %s is %s", id, issuance, status)
			}
		}
	}
}

// add counts an entry.
func (c *tally) add(rt *rapid.T, e said) {
	switch e.Kind {
	case "person.seen":
		c.groups[e.Person.ID], c.handles[e.Person.ID] = e.Person.Groups, e.Person.Handle
	case "request.pending":
		c.polls[e.ID] = &poll{group: e.Decision.Approval.Group, quorum: e.Decision.Approval.Quorum, yes: map[string]string{}}
	case "approval.vote":
		voter, _ := e.Actor.(map[string]any)["id"].(string)
		if e.Verdict == "deny" {
			c.polls[e.ID].no = true
		} else {
			c.polls[e.ID].yes[voter] = e.Covers
		}
	case "approval.remembered":
		c.polls[e.ID].of = e.Of
		for voter, covers := range c.polls[e.Of].yes {
			if covers == "task" {
				c.polls[e.ID].yes[voter] = covers
			}
		}
	case "issuance.intent":
		c.statuses[e.ID], c.leased[e.ID] = "intent", e.Intent.Grant.Leased
		c.issue(rt, e)
	case "approval.withdrawn", "request.denied":
	default:
		c.statuses[e.ID] = e.Kind[len("issuance."):]
		if c.leased[e.ID] && c.statuses[e.ID] == "revoked" {
			c.statuses[e.ID] += " " + e.Detail
		}
	}
}

// issue checks an issuance against the votes so far.
func (c *tally) issue(rt *rapid.T, e said) {
	asked := c.polls[e.Approves.Request]
	may := 0
	for voter := range asked.yes {
		if slices.Contains(c.groups[voter], asked.group) && c.handles[voter] != c.owner {
			may++
		}
	}
	if may < asked.quorum {
		rt.Errorf("%s was issued with the yes of %d who may, want %d", e.ID, may, asked.quorum)
	}
	if c.refused(asked) {
		rt.Errorf("%s was issued after a no", e.ID)
	}
	for _, before := range asked.issued {
		switch c.statuses[before] {
		case "failed", "compensated", "revoked undelivered":
		default:
			rt.Errorf("%s was issued for what %s (%s) was issued for", e.ID, before, c.statuses[before])
		}
	}
	asked.issued = append(asked.issued, e.ID)
}

// refused reports whether anyone denied the request, or the one whose votes it reuses.
func (c *tally) refused(asked *poll) bool {
	return asked.no || asked.of != "" && c.polls[asked.of].no
}
