package login

// Failed describes a failed login.
var Failed = failed
