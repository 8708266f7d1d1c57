module github.com/ProtonMail/gopenpgp/v3

go 1.26.0
