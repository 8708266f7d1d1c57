package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
)

// partNews reports the state of one credential on standard error. Before the program runs, it may show a line that changes.
// Afterwards the terminal belongs to the program, and each message is a separate line.
type partNews struct {
	con   *console
	scope string

	mu      sync.Mutex
	stop    func() // ends the line that changes
	settled bool
}

func (n *partNews) say(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clear()
	fmt.Fprintf(n.con.err, "brevet: %s %s\n", n.scope, safetext.Text(fmt.Sprintf(format, args...)))
}

// waits says who must approve the request.
func (n *partNews) waits(p client.Pending) {
	n.say("is pending approval: %d of %s%s, until %s; request %s",
		p.Quorum, p.Group, standIn(p.BreakGlass), p.Expires.Local().Format(time.TimeOnly), p.ID)
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.settled && colourful(n.con.err) {
		n.stop = showWaiting(n.con, "waiting for "+safetext.Text(p.Group), p.Expires)
	}
}

// settle removes the changing line, and leaves the terminal to the program.
func (n *partNews) settle() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clear()
	n.settled = true
}

func (n *partNews) clear() {
	if n.stop != nil {
		n.stop()
		n.stop = nil
	}
}
