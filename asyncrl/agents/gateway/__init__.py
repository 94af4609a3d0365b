"""The agents' gateway: OpenAI's API, and an episode's notes and rewards, for the agents that play a
run's episodes. Their calls are answered by the coordinator, over the link of an agents actor.

    app.py             the routes, and who may use them
    call_routes.py     OpenAI's part of them
    gateway.py         one call, from its prompt to its end
    played_session.py  one attempt at an episode, and its messages to the coordinator
    known_text.py      tokens of the texts that an attempt's model has seen or sampled
"""
