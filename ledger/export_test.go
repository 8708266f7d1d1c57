package ledger

// Queued counts the records that wait for a commit.
func (l *Ledger) Queued() int { return len(l.queue) }
