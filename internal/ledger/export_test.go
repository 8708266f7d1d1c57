package ledger

// Queued returns how many records wait for a commit.
func (l *Ledger) Queued() int { return len(l.queue) }

// QueuedUrgent returns how many urgent entries wait.
func (l *Ledger) QueuedUrgent() int { return len(l.urgent) }

// InChunksOf sets how many entry indexes a statement of Read covers.
func (h *History) InChunksOf(size int64) { h.size = size }
