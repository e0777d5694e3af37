"""Who comes back, when, and with how long a prompt: learned from the turns that a server has served, while it serves.

===================  ===================================  ==================================================
file                 its job                              in → out
===================  ===================================  ==================================================
*whose turn it is*
records              what is recorded                     –
prefix_index         which known context is continued     hashes of tokens → checkpoints
last_users           whose path a new one leaves          a context → who used its beginning last
known_conversations  which ones can be recognised         a context → the conversation that it continues
conversations        whose turn it is, what that tells    a turn → its conversation
shared_prefixes      what many contexts begin with        first turns → how soon a template is used again
endings              how an answer ended                  its last tokens → a kind
reuse                what no next prompt repeats          returns → λ = 0 for it
*what to expect of it*
turn_features        what is known of a turn              a conversation → a row of categories
turn_log             what became of the last turns        turns, returns → stretches of silence
age_bands            ages, in steps                       s → a band
hazard_model         how soon conversations return        stretches of silence → hazards by features and age
refits               when hazards are estimated anew      turns → the hazards in force
reliability          whether hazards can be believed      hazards, returns → predicted, seen
gittins              what that is worth                   hazards → index
return_model         rates for the order                  a leaf's conversation → λ
prompt_lengths       how long the next prompt is          what prompts added → a distribution of Q
custom_model         a return model of one's own          its name → the model
model_check          is such a model sound?               its name → nothing, or the first fault
*by which policy to evict*
candidates           the policies that are compared       what is learned and said → versions of each
shadow_cache         what another policy would have cost  the same turns → uncached tokens
guard, least_tel     which candidate may be in force      uncached tokens of each → its name
selector             candidates side by side              shadow caches → the preferred one
*all of it*
learner              together                             turns → the policy in force
state                what of it is worth keeping          a learner → what another one begins with
state_file           the file of it                       a path, whose it is → that, or a refusal
===================  ===================================  ==================================================

Nothing here knows of SGLang or of a clock: time is in stamps that requests carry, so all ranks learn alike.
"""
