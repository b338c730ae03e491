# Read by every interactive bash; starts no process.

case $- in
  *i*) ;;
  *) return ;;
esac

PS1='\u@\h:\w\$ '
HISTCONTROL=ignoreboth
shopt -s checkwinsize histappend
alias ls='ls --color=auto'
alias grep='grep --color=auto'
alias ll='ls -l'
