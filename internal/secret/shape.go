package secret

import "regexp"

// shaped matches keys and tokens with a known format, which people and programs paste by mistake.
var shaped = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.` + // JWTs
	`|-----BEGIN [A-Z ]*PRIVATE KEY` +
	`|\bhv[sbr]\.[A-Za-z0-9_-]{20,}` + // Vault and OpenBao
	`|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b` + // AWS
	`|\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{30,}|\bglpat-[A-Za-z0-9_-]{20,}` +
	`|\bxox[abposr]-[A-Za-z0-9-]{10,}` + // Slack
	`|\bAIza[A-Za-z0-9_-]{35}` + // Google
	`|\bsk-[A-Za-z0-9_-]{20,}|\b[rs]k_live_[A-Za-z0-9]{16,}` + // OpenAI and its like, Stripe
	`|\bwhsec_[A-Za-z0-9+/=]{20,}`)

// Shaped reports whether a text contains something that looks like a secret. Such a text is refused and not recorded, because
// the record is permanent.
func Shaped(text string) bool { return shaped.MatchString(text) }
