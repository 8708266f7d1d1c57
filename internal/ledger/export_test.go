package ledger

// Queued returns how many records wait for a commit.
func (l *Ledger) Queued() int { return len(l.queue) }

// InChunksOf sets how many entry indexes a statement of Read covers.
func (h *History) InChunksOf(size int64) { h.size = size }
